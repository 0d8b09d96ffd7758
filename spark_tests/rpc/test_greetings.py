"""Lines about clients that connected: as many as somebody reads, however many there are."""

from __future__ import annotations

import logging

import pytest

from mq_broker.rpc.greetings import Greetings


def test_lines_of_one_host_are_bounded_and_those_left_out_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [0.0]
    greetings = Greetings(lambda: now[0])
    with caplog.at_level(logging.INFO):
        for number in range(5000):
            greetings.tell(f"client {number}", f"ipv4:10.0.0.1:{number}")
        assert len(caplog.records) == 100
        greetings.tell("another host", "ipv4:10.0.0.2:1")
        assert len(caplog.records) == 101
        now[0] = 1.5
        greetings.tell("later", "ipv4:10.0.0.1:7")
        greetings.tell("too early", "ipv4:10.0.0.1:7")
    assert len(caplog.records) == 102
    assert "4900" in str(vars(caplog.records[-1]))


def test_hosts_that_were_silent_longest_are_forgotten() -> None:
    greetings = Greetings(lambda: 0.0)
    for number in range(3000):
        greetings.tell("client", f"ipv4:10.0.{number >> 8}.{number & 255}:1")
    assert len(greetings._hosts) == 1000
