"""The Spark source and sink. They stand on `pyspark_mq.client`, which knows nothing of them."""
