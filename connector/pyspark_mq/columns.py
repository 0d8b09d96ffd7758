"""The columns that batches of a consumer can have, under the name that `Consumer.batches` tells."""

from pyspark_mq.client.columns import DELIVERED

__all__ = ["DELIVERED"]
