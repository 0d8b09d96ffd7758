"""Producer and Consumer without Spark: single messages, then Arrow record batches."""

import pyarrow as pa

from mq_broker import LocalBroker
from pyspark_mq import Consumer, Producer

with LocalBroker() as broker:
    with Producer(broker.address, queue="orders") as producer:
        # One message. Sending is asynchronous; the receipt comes when the message is on disk.
        receipt = producer.send(
            b"urgent order", key=b"customer-7", priority=9, headers={"origin": b"example"}
        ).result(timeout=5)
        print(f"stored in partition {receipt.partition} at offset {receipt.offset}")

        # Many messages at once as columns, which is the fastest way.
        batch = pa.RecordBatch.from_pydict(
            {
                "key": pa.array([f"customer-{number % 100}".encode() for number in range(10_000)]),
                "value": pa.array([f"order {number}".encode() for number in range(10_000)]),
            }
        )
        for partition, base_offset, rows, duplicates in producer.send_batch(batch).result(timeout=5).ranges:
            print(f"partition {partition}: {rows} rows from offset {base_offset}, {duplicates} duplicates")

    with Consumer(broker.address, queue="orders", prefetch=1000) as consumer:
        # One message. The highest priority comes first.
        message = consumer.receive(timeout=5)
        assert message is not None
        assert message.value == b"urgent order"
        print(
            f"{message.value!r} from {message.key!r}, priority {message.priority}, headers {message.headers}"
        )
        consumer.acknowledge(message)

        # The rest as record batches. The loop ends when nothing came for a second.
        rows = 0
        for delivered in consumer.batches(max_rows=5_000, timeout=1.0):
            rows += delivered.num_rows
            consumer.acknowledge(delivered)
        print(f"{rows} more as Arrow record batches")
        assert rows == 10_000
