"""From pip install to first rows: send a few messages, read them with Spark.

pip install '.[broker,spark]'    # in a checkout
python examples/01_first_rows.py
"""

import os
import sys
import tempfile

from pyspark.sql import SparkSession

from mq_broker import LocalBroker
from pyspark_mq import Producer

# Spark's workers must use the Python that has pyspark-mq installed.
os.environ["PYSPARK_PYTHON"] = sys.executable

with LocalBroker() as broker:  # starts a broker on a free port; in production you run `mq broker`
    with Producer(broker.address, queue="orders") as producer:
        for number in range(5):
            producer.send(f"order {number}".encode(), key=b"customer-7", priority=9 if number == 3 else 4)

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()

    # A batch read shows the rows in the queue and consumes none.
    rows = spark.read.format("mq").option("broker", broker.address).option("queue", "orders").load()
    rows.selectExpr("cast(value as string) as value", "priority", "partition", "offset").show()

    # A stream consumes: rows of a finished batch are acknowledged and gone from the queue.
    orders = spark.readStream.format("mq").option("broker", broker.address).option("queue", "orders").load()
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            orders.selectExpr("cast(value as string) as value", "priority", "delivery_count")
            .writeStream.format("console")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    spark.stop()
