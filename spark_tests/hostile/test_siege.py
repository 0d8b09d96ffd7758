"""The harness of attacks: it lets pass what does no harm, and its alarms ring."""

from __future__ import annotations

import dataclasses
import pathlib
import random

import pytest

from mq_wire.v1.admin_pb2 import StatsRequest
from spark_tests.hostile import http2
from spark_tests.hostile.siege import Attack, Report, Siege, Target, Usage, stop_during, usage
from spark_tests.support.waiting import wait_until
from spark_tests.support.wire import batch_of

pytestmark = pytest.mark.slow


def ask_once(target: Target) -> None:
    client = target.client()
    stream = client.call("Stats", StatsRequest().SerializeToString())
    wait_until(lambda: stream in client.ended)
    assert client.received[stream] > 5


ASK_ONCE = Attack("one question", ask_once)


def test_what_does_no_harm_passes(siege: Siege) -> None:
    report = siege.endure(ASK_ONCE)
    report.check()
    assert len(report.rounds) >= 20
    assert report.before.rss_anon_bytes > 1 << 20
    assert report.peak.threads > 2
    assert report.peak.files > 5
    assert not siege.broker.stderr().count("Traceback")


def test_a_client_that_does_not_read_gets_no_more_than_its_window(siege: Siege) -> None:
    with http2.Client(siege.port, window=3, reads=False) as client:
        stream = client.call("Stats", StatsRequest().SerializeToString())
        wait_until(lambda: client.received[stream] == 3)
        siege.witness.wait_for(5)
        assert client.received[stream] == 3
        assert stream not in client.ended
        client.grant(stream, 1 << 20)
        wait_until(lambda: stream in client.ended)
        assert not client.closed


def test_every_alarm_rings() -> None:
    quiet = [{"began": 0.0, "took_s": 0.001, "error": ""}]
    good = Report(ASK_ONCE, Usage(100 << 20), Usage(200 << 20), Usage(110 << 20), 1.0, quiet)
    good.check()
    for broken, words in (
        (dataclasses.replace(good, peak=Usage(600 << 20)), "500 MiB more"),
        (dataclasses.replace(good, after=Usage(160 << 20)), "60 MiB are left"),
        (
            dataclasses.replace(good, rounds=[*quiet, {"began": 0.0, "took_s": 1.0, "error": "DEADLINE"}]),
            "1 of 2 rounds",
        ),
    ):
        with pytest.raises(AssertionError, match=words):
            broken.check()


def test_a_broker_that_is_gone_is_noticed(tmp_path: pathlib.Path) -> None:
    siege = Siege(tmp_path / "broker")
    pid = siege.broker.pid
    siege.broker.kill()
    assert usage(pid) == Usage()
    wait_until(lambda: any(round_["error"] for round_ in siege.witness.rounds), 60)
    siege.abandon()


def test_rows_that_somebody_takes_from_the_innocent_are_missed(tmp_path: pathlib.Path) -> None:
    siege = Siege(tmp_path / "broker")
    siege.wire.publisher(siege.witness.queue).send(batch_of([b"a stranger's"]))
    with pytest.raises(AssertionError):
        siege.end()


def test_a_broker_is_told_to_stop_during_an_attack(tmp_path: pathlib.Path, rng: random.Random) -> None:
    stop_during(ASK_ONCE, tmp_path / "broker", rng)
