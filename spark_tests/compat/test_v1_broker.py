"""Today's client and the broker of version 0.1.0, from its own wheel: a stream for each consumer, and nothing
that the old broker does not know.
"""

from __future__ import annotations

import pathlib
import sys
import threading
import zipfile

import pytest

from mq_broker import LocalBroker
from mq_wire.errors import Unsupported
from pyspark_mq import Connection, Consumer, Producer
from spark_tests.compat.kept import WHEEL

#: Runs a module of the old packages, which stand before those of today.
OLD = """
import runpy, sys
sys.path.insert(0, sys.argv.pop(1))
runpy.run_module("mq_broker.console", run_name="__main__")
"""


class OldBroker(LocalBroker):
    """A broker of version 0.1.0 with today's handle."""

    packages: pathlib.Path

    def _command(self) -> list[str]:
        command = super()._command()
        return [sys.executable, "-c", OLD, str(self.packages), *command[command.index("broker") :]]


@pytest.fixture
def packages(tmp_path: pathlib.Path) -> pathlib.Path:
    with zipfile.ZipFile(WHEEL) as wheel:
        wheel.extractall(tmp_path / "v1")
    return tmp_path / "v1"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("is_known", [True, False])
def test_consumers_of_one_connection_work_with_an_old_broker(
    packages: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, *, is_known: bool
) -> None:
    """`is_known`: whether the broker's version is known before a stream is made. Otherwise the consumers
    begin to share one, and go to streams of their own.
    """
    if not is_known:
        monkeypatch.setattr(Connection, "known_hello", None)
    OldBroker.packages = packages
    with OldBroker(tmp_path / "data") as broker, Connection(broker.address) as connection:
        assert connection.hello().version == "0.1.0"
        with Producer(queue="orders", connection=connection) as producer:
            for number in range(3000):
                producer.send(b"%d" % number)
        with (
            Consumer(queue="orders", connection=connection, prefetch=100) as one,
            Consumer(queue="orders", connection=connection, prefetch=100) as two,
        ):
            values = set()
            for consumer in (one, two) * 10:
                for _ in range(100):
                    message = consumer.receive(timeout=20)
                    assert message is not None
                    values.add(message.value)
                    consumer.acknowledge(message)
            assert len(values) == 2000
            assert sum(thread.name == "mq-consumer" for thread in threading.enumerate()) == 2
            message = one.receive(timeout=20)
            assert message is not None
            with pytest.raises(Unsupported, match="too old to take single messages"):
                one.release(message)
        # Both have said what they were handed over, and gave back the rest.
        with Consumer(queue="orders", connection=connection) as rest:
            found = dict[bytes, int]()
            while len(found) < 1000:
                again = rest.receive(timeout=20)
                assert again is not None
                found[again.value] = again.delivery_count
        assert found.pop(message.value) == 2
        assert set(found.values()) == {1}
