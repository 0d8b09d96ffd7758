"""foreachBatch into another system, and into a queue with txnAppId and txnVersion. A repeated batch changes
nothing.

The other system is a SQLite file. Each batch is one transaction, which also stores the batch's number. A new
checkpoint numbers its batches from 0 again. So each checkpoint has a name, which is stored with the numbers.
"""

import os
import pathlib
import sqlite3
import sys
import tempfile

from pyspark.sql import DataFrame, SparkSession

from mq_broker import LocalBroker
from pyspark_mq import Consumer, Producer

os.environ["PYSPARK_PYTHON"] = sys.executable
ROWS = 3_000
CHECKPOINT = "orders-1"  # a new checkpoint needs a new name, such as orders-2


def store(database: pathlib.Path, rows: list[tuple[str, int]], batch_id: int) -> None:
    """Writes a batch, unless it was written before: its number and its rows are in the same transaction."""
    connection = sqlite3.connect(database)
    with connection:
        connection.execute(
            "create table if not exists batches (checkpoint text, id integer, primary key (checkpoint, id))"
        )
        connection.execute("create table if not exists orders (name text, priority integer)")
        if connection.execute("insert or ignore into batches values (?, ?)", (CHECKPOINT, batch_id)).rowcount:
            connection.executemany("insert into orders values (?, ?)", rows)
    connection.close()


with LocalBroker() as broker, tempfile.TemporaryDirectory() as folder:
    database = pathlib.Path(folder, "orders.db")
    with Producer(broker.address, queue="orders") as producer:
        for number in range(ROWS):
            producer.send(f"order-{number}".encode(), priority=number % 10)

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()

    def handle(batch: DataFrame, batch_id: int) -> None:
        """Spark calls this for each micro-batch. After an interruption it calls it again with the same rows
        and number.
        """
        batch = batch.selectExpr("cast(value as string) as name", "priority")
        store(database, [(row["name"], row["priority"]) for row in batch.collect()], batch_id)
        (
            batch.where("priority = 9")
            .selectExpr("upper(name) as value")
            .write.format("mq")
            .mode("append")
            .option("broker", broker.address)
            .option("queue", "urgent")
            .option("txnAppId", CHECKPOINT)
            .option("txnVersion", batch_id)
            .save()
        )

    query = (
        spark.readStream.format("mq")
        .option("broker", broker.address)
        .option("queue", "orders")
        .option("maxOffsetsPerTrigger", 1_000)
        .load()
        .writeStream.foreachBatch(handle)
        .option("checkpointLocation", str(pathlib.Path(folder, CHECKPOINT)))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    stored = sqlite3.connect(database).execute("select count(*), count(distinct name) from orders").fetchone()
    with Consumer(broker.address, queue="urgent") as consumer:
        urgent = sum(batch.num_rows for batch in consumer.batches(timeout=1.0))
    assert stored == (ROWS, ROWS)
    assert urgent == ROWS // 10
    print(f"{stored[0]} orders in SQLite, {urgent} urgent ones announced in a queue")
    spark.stop()
