"""mq -> Spark -> mq, exactly once: a query fails half-way, starts again from its checkpoint, and no row is
lost or doubled.
"""

import os
import sys
import tempfile

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from mq_broker import LocalBroker
from pyspark_mq import Consumer, Producer

os.environ["PYSPARK_PYTHON"] = sys.executable
ROWS = 20_000
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")  # the failure below is intended


def double(broker: str, checkpoint: str, poisoned: int) -> None:
    """Writes the double of every number in queue `numbers` to queue `doubled`. Fails at the number
    `poisoned`.
    """
    number = F.col("value").cast("string").cast("long")
    checked = F.when(number == poisoned, F.raise_error(F.lit("the machine caught fire"))).otherwise(
        number * 2
    )
    numbers = (
        spark.readStream.format("mq")
        .option("broker", broker)
        .option("queue", "numbers")
        .option("maxOffsetsPerTrigger", 6_000)
        .load()
    )
    query = (
        numbers.select("key", checked.cast("string").alias("value"))
        .writeStream.format("mq")
        .option("broker", broker)
        .option("queue", "doubled")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


with LocalBroker() as broker, tempfile.TemporaryDirectory() as checkpoint:
    with Producer(broker.address, queue="numbers") as producer:
        for number in range(ROWS):
            producer.send(str(number).encode())

    try:
        double(broker.address, checkpoint, poisoned=ROWS // 2)
        raise SystemExit("the first run should have failed")
    except StreamingQueryException:
        print("first run: failed in the middle, as planned")

    double(broker.address, checkpoint, poisoned=-1)
    print("second run: continued from the checkpoint")

    with Consumer(broker.address, queue="doubled") as consumer:
        results = [
            int(value) for batch in consumer.batches(timeout=1.0) for value in batch["value"].to_pylist()
        ]
    assert sorted(results) == [2 * number for number in range(ROWS)], "a row is lost or doubled"
    print(f"{len(results)} results, each exactly once")
    spark.stop()
