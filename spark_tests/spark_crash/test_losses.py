"""The faults of a checkpoint do what they say, and what a file sink counts as written is found: otherwise the
runs prove nothing.
"""

from __future__ import annotations

import json
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_tests.spark_crash.books import in_files
from spark_tests.spark_crash.losses import Copy, Loss
from spark_tests.spark_crash.refusals import is_by_spark, is_refusal, names_two_readers


def files(folder: pathlib.Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def checkpoint(tmp_path: pathlib.Path) -> pathlib.Path:
    """Batch 10 is the last one, and done."""
    folder = tmp_path / "checkpoint"
    for log in ("offsets", "commits"):
        (folder / log).mkdir(parents=True)
        for batch in (8, 9, 10):
            (folder / log / str(batch)).write_text("v1")
            (folder / log / f".{batch}.crc").write_text("crc")
    return folder


def test_the_last_files_are_lost_with_their_sums(checkpoint: pathlib.Path) -> None:
    Loss(offsets=2, commits=1).strike(checkpoint)
    assert files(checkpoint) == [
        "commits/.8.crc",
        "commits/.9.crc",
        "commits/8",
        "commits/9",
        "offsets/.8.crc",
        "offsets/8",
    ]


def test_more_than_there_is_is_everything(checkpoint: pathlib.Path) -> None:
    Loss(offsets=5).strike(checkpoint)
    assert [name for name in files(checkpoint) if name.startswith("offsets")] == []


def test_a_copy_replaces_what_came_later(checkpoint: pathlib.Path, tmp_path: pathlib.Path) -> None:
    copy, before = Copy(tmp_path / "copy"), files(checkpoint)
    copy.take(checkpoint)
    (checkpoint / "offsets" / "11").write_text("v1")
    Loss(copied=1).strike(checkpoint, copy)
    assert files(checkpoint) == before


def test_a_file_sink_has_what_its_log_says(tmp_path: pathlib.Path) -> None:
    """A compact file stands for all before it, and a file that no log names was never written."""
    log = tmp_path / "_spark_metadata"
    log.mkdir()
    for number in range(12):
        path = tmp_path / f"part-{number:05}.parquet"
        pq.write_table(pa.table({"value": [bytes([number])], "priority": [4]}), path)
        if number < 11:
            entry = json.dumps({"path": f"file://{path}", "action": "add"})
            (log / str(number)).write_text(f"v1\n{entry}")
    lines = [(log / str(number)).read_text().partition("\n")[2] for number in range(10)]
    (log / "9").unlink()
    (log / "9.compact").write_text("\n".join(["v1", *lines]))
    assert [value for value, _ in in_files(tmp_path)] == [bytes([number]) for number in range(11)]


@pytest.mark.parametrize(
    ("said", "refusal", "by_spark", "two_readers"),
    [
        ("DataLost: the checkpoint lost its last batches: start with a new one", True, False, False),
        (
            "CheckpointTooOld: an old copy of the checkpoint; start the query with another checkpoint",
            True,
            False,
            False,
        ),
        ("[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log", False, True, False),
        ("a query reads queue 'orders' twice", False, False, True),
        ("BrokerUnavailable: nobody answers", False, False, False),
        ("java.lang.NullPointerException: checkpoint", False, False, False),
    ],
)
def test_what_counts_as_a_refusal(said: str, refusal: bool, by_spark: bool, two_readers: bool) -> None:
    assert (is_refusal(said), is_by_spark(said), names_two_readers(said)) == (refusal, by_spark, two_readers)
