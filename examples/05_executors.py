r"""Several executors: a packed virtual environment brings pyspark-mq to machines that do not have it.

Spark finds a Python source only if it is installed in the *workers'* Python; --py-files and addPyFile come
too late. So the job brings a whole environment with `spark.archives`. Here it goes to two executor processes
of a local cluster. It works in the same way on YARN and Kubernetes:

    pip install venv-pack uv
    venv-pack -o environment.tar.gz
    spark-submit --archives environment.tar.gz#environment \
        --conf spark.executorEnv.PYSPARK_PYTHON=./environment/bin/python job.py
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

from pyspark.sql import SparkSession

from mq_broker import LocalBroker
from pyspark_mq import Consumer, Producer

CHECKOUT = str(pathlib.Path(__file__).resolve().parents[1])
ROWS = 10_000


def pack(folder: pathlib.Path, wheel: str) -> pathlib.Path:
    """Returns an archive of an environment with pyspark-mq and its dependencies, without Spark, which the
    executors have.
    """
    environment, archive = folder / "environment", folder / "environment.tar.gz"
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, str(environment)], check=True)
    subprocess.run(
        [*uv, "pip", "install", "--quiet", "--python", str(environment / "bin" / "python"), wheel], check=True
    )
    venv_pack = [sys.executable, "-m", "venv_pack", "--quiet", "--compress-level", "1"]
    subprocess.run([*venv_pack, "--prefix", str(environment), "--output", str(archive)], check=True)
    return archive


def main() -> None:
    """Sends rows, reads them on two executors, writes them to another queue."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = "wheel or checkout to install on the executors (default: this checkout)"
    parser.add_argument("wheel", nargs="?", default=CHECKOUT, help=what)
    wheel = parser.parse_args().wheel
    with LocalBroker() as broker, tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        with Producer(broker.address, queue="numbers") as producer:
            for number in range(ROWS):
                producer.send(str(number).encode())

        archive = pack(folder, wheel)
        os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        # Each executor unpacks the archive into the folder `environment`.
        os.environ["PYSPARK_PYTHON"] = "./environment/bin/python"
        spark = (
            SparkSession.builder.master("local-cluster[2,1,1024]")
            .config("spark.archives", f"{archive}#environment")
            .config("spark.ui.enabled", "false")
            .getOrCreate()
        )
        numbers = (
            spark.readStream.format("mq").option("broker", broker.address).option("queue", "numbers").load()
        )
        query = (
            numbers.selectExpr("value")
            .writeStream.format("mq")
            .option("broker", broker.address)
            .option("queue", "copies")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        with Consumer(broker.address, queue="copies") as consumer:
            copies = sum(batch.num_rows for batch in consumer.batches(timeout=1.0))
        assert copies == ROWS
        print(f"{copies} rows went through two executors")
        spark.stop()


if __name__ == "__main__":
    main()
