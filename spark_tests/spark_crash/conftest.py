"""One session in this process for the tests that kill nothing. Where other tests of the run have one already,
it is that one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from spark_tests.spark_crash.drivers import CONF, environment_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    there = SparkSession.getActiveSession()
    if there is not None:
        yield there
        return
    builder = SparkSession.builder.master("local[2]").appName("mq-spark-crash")
    for name, value in CONF.items():
        builder = builder.config(name, value)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment_of("127.0.0.1").items():
            if os.environ.get(name) != value:
                patch.setenv(name, value)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        yield session
        session.stop()
