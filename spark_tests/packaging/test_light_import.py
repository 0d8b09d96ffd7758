"""`import pyspark_mq` happens in every process that uses any Python data source: it must be cheap and must
never fail.
"""

from __future__ import annotations

import subprocess
import sys

from spark_tests.support.tree import PROJECT

HEAVY = ["grpc", "google.protobuf", "pyarrow", "numpy", "pandas", "pyspark"]

#: Makes named packages unimportable, as on a machine that does not have them.
HIDE = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hidden())
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT / "conf", text=True, capture_output=True, check=False
    )


def test_importing_loads_nothing_heavy() -> None:
    done = run(f"import pyspark_mq, sys; print(sorted(set({HEAVY!r}) & set(sys.modules)))")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_importing_never_fails_where_everything_is_missing() -> None:
    done = run(
        HIDE.format(hidden={"grpc", "google", "pyarrow", "numpy", "pyspark"})
        + "import pyspark_mq; print(pyspark_mq.__all__)"
    )
    assert done.returncode == 0, done.stderr
    assert "Producer" in done.stdout


def test_use_without_grpcio_names_the_remedy() -> None:
    done = run(HIDE.format(hidden={"grpc"}) + "import pyspark_mq; pyspark_mq.Producer")
    assert done.returncode == 1
    assert "grpcio" in done.stderr.splitlines()[-1]


def test_use_without_pyspark_names_the_remedy() -> None:
    done = run(HIDE.format(hidden={"pyspark"}) + "import pyspark_mq; pyspark_mq.DefaultSource")
    assert done.returncode == 1
    assert "pyspark-mq[spark]" in done.stderr.splitlines()[-1]


def test_the_whole_client_is_there_without_pyspark() -> None:
    code = (
        "import pkgutil, sys; from importlib import import_module; import pyspark_mq.client as client; "
        "names = [each.name for each in pkgutil.iter_modules(client.__path__)]; "
        "[import_module(f'pyspark_mq.client.{name}') for name in names]; "
        "print(len(names), [name for name in sys.modules if name.startswith('pyspark_mq.spark')])"
    )
    done = run(HIDE.format(hidden={"pyspark"}) + code)
    assert done.returncode == 0, done.stderr
    count, spark = done.stdout.split(maxsplit=1)
    assert int(count) > 10
    assert spark.strip() == "[]"


def test_the_command_without_the_broker_extra_names_the_remedy() -> None:
    code = (
        "import sys; sys.argv = ['mq', 'broker']; from mq_broker.console.main import main; sys.exit(main())"
    )
    done = run(HIDE.format(hidden={"pyroaring"}) + code)
    assert done.returncode != 0
    assert ".[broker]' in a checkout of pyspark-mq" in done.stderr.splitlines()[-1]
