"""Options: every mistake is found before anything starts, and says what to write instead."""

from __future__ import annotations

import pytest

from mq_wire.errors import FixTheCall, InvalidName, InvalidOption, Unsupported
from pyspark_mq.spark.options import BrowseOptions, ReadOptions, SinkOptions, SourceOptions

QUEUE = {"queue": "orders"}


def test_defaults() -> None:
    options = SourceOptions.parse(QUEUE)
    assert options.broker == "mq://127.0.0.1:7654"
    assert options.max_offsets_per_trigger == 1_000_000
    assert options.max_bytes_per_trigger == 256 << 20
    assert options.max_trigger_delay == 15 * 60_000
    assert options.idle_wait_ms == 50
    assert options.fail_on_data_loss


def test_names_in_any_case_and_values_with_units() -> None:
    options = SourceOptions.parse(
        {
            "QUEUE": "a.b",
            "maxoffsetspertrigger": "5",
            "maxBytesPerTrigger": "2m",
            "MAXTRIGGERDELAY": "30s",
            "includeheaders": "TRUE",
        }
    )
    assert (options.queue, options.max_offsets_per_trigger, options.max_bytes_per_trigger) == (
        "a.b",
        5,
        2 << 20,
    )
    assert (options.max_trigger_delay, options.include_headers) == (30_000, True)


@pytest.mark.parametrize("text", ["5 minutes", "5m", "5min", "300 seconds", "300s", "1 minute"])
def test_times_have_the_names_of_spark(text: str) -> None:
    minutes = 1 if text == "1 minute" else 5
    assert SourceOptions.parse(QUEUE | {"maxTriggerDelay": text}).max_trigger_delay == minutes * 60_000


def test_what_spark_adds_to_a_sink_is_not_unknown() -> None:
    assert SinkOptions.parse(QUEUE | {"checkpointlocation": "/x", "queryname": "q"}).queue == "orders"


@pytest.mark.parametrize(
    ("direction", "given", "text"),
    [
        (SourceOptions, {}, "queue is missing"),
        (SourceOptions, QUEUE | {"maxoffsetpertrigger": "5"}, r"did you mean maxOffsetsPerTrigger\?"),
        (SourceOptions, QUEUE | {"windowbytes": "5"}, "unknown to a streaming read"),
        (BrowseOptions, QUEUE | {"maxoffsetspertrigger": "5"}, "unknown to a batch read"),
        (SinkOptions, QUEUE | {"lingerm": "5"}, r"did you mean lingerMs\?"),
        (SourceOptions, QUEUE | {"path": "orders"}, "takes no path"),
        (SourceOptions, QUEUE | {"kafka.bootstrap.servers": "x"}, "is for Kafka"),
        (ReadOptions, {}, r"If this is a table: .*CREATE TEMPORARY VIEW"),
        (ReadOptions, QUEUE | {"option.queue": "q"}, "use CREATE TEMPORARY VIEW"),
        (SourceOptions, {"subscribe": "q"}, "format mq takes option queue"),
        (
            BrowseOptions,
            QUEUE | {"endingoffsets": "latest"},
            "endingoffsets is for Kafka.*leave the option out",
        ),
        (
            SourceOptions,
            QUEUE | {"startingoffsets": "latest"},
            "startingOffsets is 'latest'.*everything that is ready",
        ),
        (SourceOptions, QUEUE | {"maxoffsetspertrigger": "-1"}, "maxOffsetsPerTrigger is '-1'"),
        (SourceOptions, QUEUE | {"maxoffsetspertrigger": "1e6"}, "whole number"),
        (SourceOptions, QUEUE | {"maxbytespertrigger": "5 apples"}, "number of bytes"),
        (SourceOptions, QUEUE | {"maxtriggerdelay": "soon"}, "time is needed"),
        (SourceOptions, QUEUE | {"includeheaders": "yes"}, "'true' or 'false'"),
        (SourceOptions, QUEUE | {"prefetchrows": "0"}, "prefetchRows is 0"),
        (SourceOptions, QUEUE | {"idlewaitms": "60000"}, "hold up the other sources"),
        (
            SourceOptions,
            QUEUE | {"minoffsetspertrigger": "10", "maxoffsetspertrigger": "5"},
            "above maxOffsetsPerTrigger",
        ),
        (SinkOptions, {}, "queue is missing"),
        (SinkOptions, QUEUE | {"batchmismatch": "ignore"}, "'fail' or 'keep'"),
        (SinkOptions, QUEUE | {"txnappid": "a"}, "txnAppId is given without txnVersion"),
        (SinkOptions, QUEUE | {"txnversion": "1"}, "txnVersion is given without txnAppId"),
        (SinkOptions, QUEUE | {"windowbytes": "0"}, "windowBytes is 0"),
        (SourceOptions, QUEUE | {"broker": "mq://me:secret@host:1"}, "(?i)user"),
        (SourceOptions, QUEUE | {"broker": "http://host:1"}, "mq://"),
    ],
)
def test_mistakes(direction: type[SourceOptions], given: dict[str, str], text: str) -> None:
    with pytest.raises(FixTheCall, match=text):
        direction.parse(given)


def test_at_load_nobody_knows_yet_whether_it_is_a_stream() -> None:
    assert ReadOptions.parse(QUEUE | {"includeheaders": "true", "maxoffsetspertrigger": "5"}).include_headers
    with pytest.raises(InvalidOption, match="unknown to a read of format mq"):
        ReadOptions.parse(QUEUE | {"windowbytes": "5"})


def test_secrets_do_not_show_up_in_errors() -> None:
    with pytest.raises(FixTheCall) as error:
        SourceOptions.parse(QUEUE | {"broker": "mq://me:secret@host:1"})
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("name", ["token", "tokenFile", "password", "poison"])
def test_options_of_later_versions_are_named(name: str) -> None:
    with pytest.raises(Unsupported, match=f"option {name}"):
        SourceOptions.parse(QUEUE | {name: "x"})


@pytest.mark.parametrize("queue", ["a..b", "a/b", "a*", "x" * 256])
def test_queue_names(queue: str) -> None:
    with pytest.raises(InvalidName):
        SourceOptions.parse({"queue": queue})


def test_routing_needs_no_queue() -> None:
    assert SinkOptions.parse({"routebycolumns": "true"}).queue == ""


def test_both_transaction_options_together() -> None:
    options = SinkOptions.parse(QUEUE | {"txnappid": "etl", "txnversion": "0"})
    assert (options.txn_app_id, options.txn_version) == ("etl", 0)


def test_option_errors_are_value_errors() -> None:
    assert issubclass(InvalidOption, ValueError)
