"""The arguments of `mq`. Errors become one line on stderr and an exit code."""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module, metadata
from typing import Any, Final

from mq_broker.config import BrokerConfig
from mq_broker.console import arguments as argument
from mq_broker.console.output import OutputFailed, check_stdout, finish, keep_standard_files
from mq_wire.errors import MqError
from mq_wire.limits import DEFAULT_ADDRESS, PRIORITY_DEFAULT

EXIT_ERROR: Final = 1
EXIT_WRONG: Final = 2
EXIT_INTERRUPTED: Final = 130
#: What Python says if the system refuses a thread.
_NO_THREAD: Final = "can't start new thread"
#: The only command that works without a stdout.
_BROKER: Final = "broker:run"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0, 1 with one line on stderr, or 2 for wrong arguments."""
    keep_standard_files()
    options = _parser().parse_args(arguments)
    if options.command == "messages:send" and options.values and options.file is not None:
        print("mq send: error: values and --file were given: give one of them", file=sys.stderr)
        return EXIT_WRONG
    if options.command == _BROKER:
        # Done first, because loading the broker's modules takes a second: a signal in that second also ends
        # it cleanly.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, lambda number, frame: os._exit(0))
    try:
        if options.command != _BROKER:
            check_stdout()
        code = _command(options.command)(options)
        if options.command != _BROKER:
            finish()
        return code
    except (MqError, OutputFailed) as error:
        print(f"mq: {error}", file=sys.stderr)
    except ModuleNotFoundError as error:
        print(
            f"mq: the Python package {error.name!r} is missing: "
            "pip install '.[broker]' in a checkout of pyspark-mq",
            file=sys.stderr,
        )
    except ImportError as error:
        print(
            f"mq: a library cannot be loaded ({error}): raise the limit on memory (ulimit -v), or install "
            "pyspark-mq again",
            file=sys.stderr,
        )
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, RuntimeError) and _NO_THREAD not in str(error):
            raise
        missing = "memory" if isinstance(error, MemoryError) else "threads"
        print(
            f"mq: the system gives this process no more {missing}: "
            "raise its limits (ulimit -u, ulimit -v, or those of its container)",
            file=sys.stderr,
        )
    return EXIT_ERROR


def _command(path: str) -> Callable[[argparse.Namespace], int]:
    # Imported here, so that each command loads only what it needs.
    module, _, name = path.partition(":")
    function: Callable[[argparse.Namespace], int] = getattr(
        import_module(f"mq_broker.console.{module}"), name
    )
    return function


def version() -> str:
    """Returns the version of the installed distribution, or "0" if it is not installed."""
    try:
        return metadata.version("pyspark-mq")
    except metadata.PackageNotFoundError:
        return "0"


class _Command(argparse.ArgumentParser):
    """A command whose options may be anywhere between its arguments: `mq send orders --priority 9 hello`."""

    _is_sorting = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Returns the options and the remaining arguments, as argparse does."""
        if self._is_sorting or self._subparsers is not None:
            return super().parse_known_args(args, namespace)
        self._is_sorting = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_sorting = False


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mq", description="A durable, columnar message queue for Spark.")
    parser.add_argument("--version", action="version", version=f"mq {version()}")
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, parser_class=_Command
    )
    _add_broker(commands)
    _add_damage(commands)
    client = argparse.ArgumentParser(add_help=False)
    client.add_argument(
        "--broker",
        type=argument.address,
        default=DEFAULT_ADDRESS,
        metavar="ADDRESS",
        help=f"default {DEFAULT_ADDRESS}",
    )
    _add_queues(commands, client)
    _add_consumers(commands, client)
    _add_staging(commands, client)
    _add_messages(commands, client)
    return parser


def _add_broker(commands: Any) -> None:
    broker = commands.add_parser(
        "broker",
        help="run a broker in the foreground",
        description="Runs a broker until SIGTERM, SIGINT or SIGQUIT. "
        "Flags beat the config file, the config file beats the defaults.",
    )
    broker.set_defaults(command=_BROKER)
    broker.add_argument("--config", metavar="FILE", help="TOML file; conf/broker.toml shows every setting")
    broker.add_argument(
        "--stop-with-stdin",
        action="store_true",
        help="stop when stdin ends, as it does when the parent process ends",
    )
    for setting in dataclasses.fields(BrokerConfig):
        kind = type(setting.default)
        broker.add_argument(
            f"--{setting.name.replace('_', '-')}",
            dest=f"set_{setting.name}",
            type=argument.truth if kind is bool else kind,
            metavar={bool: "true|false", int: "N"}.get(kind, "TEXT"),
            help=f"{setting.metadata['summary']} (default "
            f"{str(setting.default).lower() if kind is bool else setting.default})",
        )


def _add_damage(commands: Any) -> None:
    for name, what in (
        (
            "verify",
            (
                "look for damage in the data directory of a stopped broker; "
                "exit code 0 = no damage, 1 = damage, 2 = unreadable"
            ),
        ),
        (
            "repair",
            (
                "take damaged parts out of the data directory (a copy stays in its folder 'quarantine') "
                "and keep the rest, so that the broker starts"
            ),
        ),
    ):
        command = commands.add_parser(name, help=what)
        command.set_defaults(command=f"damage:{name}")
        command.add_argument("directory", metavar="DIR", help="the broker's --data-dir")
        command.add_argument("--json", action="store_true", help="print JSON, for programs")


def _add_queues(commands: Any, client: argparse.ArgumentParser) -> None:
    queues = commands.add_parser("queues", parents=[client], help="list queues and what waits in them")
    queues.set_defaults(command="queues:queues")
    queues.add_argument(
        "prefix",
        type=argument.text,
        nargs="?",
        default="",
        metavar="PREFIX",
        help="only queues whose names begin with this",
    )

    stats = commands.add_parser("stats", parents=[client], help="figures of the broker, or of one queue")
    stats.set_defaults(command="queues:stats")
    stats.add_argument("queue", type=argument.text, nargs="?", default="", metavar="QUEUE")

    create = commands.add_parser("create", parents=[client], help="create a queue")
    create.set_defaults(command="queues:create")
    create.add_argument("queue", type=argument.text, metavar="QUEUE")
    create.add_argument(
        "--partitions",
        type=argument.number(1, argument.PARTITIONS_MAX),
        default=0,
        metavar="N",
        help="default: the broker's default_partitions",
    )

    delete = commands.add_parser("delete", parents=[client], help="delete a queue")
    delete.set_defaults(command="queues:delete")
    delete.add_argument("queue", type=argument.text, metavar="QUEUE")
    delete.add_argument(
        "--force", action="store_true", help="delete the queue even if it holds messages; they are lost"
    )


def _add_consumers(commands: Any, client: argparse.ArgumentParser) -> None:
    consumers = commands.add_parser("consumers", help="Spark queries and connected consumers")
    actions = consumers.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = actions.add_parser(
        "list", parents=[client], help="list consumers, what they hold and since when"
    )
    listing.set_defaults(command="consumers:listing")
    listing.add_argument("queue", type=argument.text, nargs="?", default="", metavar="QUEUE")
    end = actions.add_parser(
        "end", parents=[client], help="end a connected consumer; the messages it holds return to the queue"
    )
    end.set_defaults(command="consumers:end")
    end.add_argument(
        "session",
        type=argument.number(1, argument.SESSIONS_MAX),
        metavar="SESSION",
        help="as `mq consumers list` shows it",
    )
    release = actions.add_parser(
        "release",
        parents=[client],
        help="end a durable consumer: the messages it holds return to the queue, its checkpoint is refused",
    )
    release.set_defaults(command="consumers:release")
    release.add_argument(
        "name",
        type=argument.text,
        metavar="NAME",
        help="name of the consumer, or its incarnation as `mq consumers list` shows it",
    )
    release.add_argument(
        "--queue",
        type=argument.text,
        default="",
        metavar="QUEUE",
        help="needed if several queues have a consumer of this name",
    )


def _add_staging(commands: Any, client: argparse.ArgumentParser) -> None:
    staged = commands.add_parser("staged", help="rows that writers have staged and not committed yet")
    actions = staged.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = actions.add_parser(
        "list",
        parents=[client],
        help="list staged sets with their sizes and the time since the last write to them",
    )
    listing.set_defaults(command="staging:list_staged")
    listing.add_argument(
        "--query", type=argument.text, default="", metavar="ID", help="only sets of this query"
    )
    discard = actions.add_parser(
        "discard", parents=[client], help="discard staged sets; a writer that still uses one fails"
    )
    discard.set_defaults(command="staging:discard_staged")
    discard.add_argument(
        "tokens", nargs="*", default=[], metavar="TOKEN", help="as `mq staged list` shows them"
    )
    discard.add_argument(
        "--query",
        type=argument.text,
        default="",
        metavar="ID",
        help="instead of tokens: all sets of this query",
    )

    markers = commands.add_parser("markers", help="the last version that each query or application committed")
    actions = markers.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = actions.add_parser("list", parents=[client], help="list owners with versions and rows")
    listing.set_defaults(command="staging:list_markers")
    listing.add_argument(
        "prefix",
        type=argument.text,
        nargs="?",
        default="",
        metavar="PREFIX",
        help="only owners that begin with this",
    )
    forget = actions.add_parser(
        "forget",
        parents=[client],
        help="forget a marker; versions that its owner writes again are stored again",
    )
    forget.set_defaults(command="staging:forget_marker")
    forget.add_argument("owner", type=argument.text, metavar="OWNER", help="as `mq markers list` shows it")
    forget.add_argument(
        "--target",
        type=argument.text,
        metavar="TARGET",
        help="needed if the owner has markers for several targets",
    )


def _add_messages(commands: Any, client: argparse.ArgumentParser) -> None:
    send = commands.add_parser("send", parents=[client], help="send messages")
    send.set_defaults(command="messages:send")
    send.add_argument("queue", type=argument.text, metavar="QUEUE")
    send.add_argument(
        "values",
        type=argument.value,
        nargs="*",
        default=[],
        metavar="VALUE",
        help="one message for each value; without values, one for each line of --file",
    )
    send.add_argument("--file", metavar="FILE", help="instead of values; default '-' = stdin")
    send.add_argument("--key", type=argument.text, help="messages with the same key keep their order")
    urgent = f"9 is most urgent; default {PRIORITY_DEFAULT}"
    send.add_argument(
        "--priority", type=argument.priority, default=PRIORITY_DEFAULT, metavar="0-9", help=urgent
    )
    send.add_argument(
        "--header",
        type=argument.header,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="may be given several times",
    )
    send.add_argument(
        "--timeout", type=argument.some_seconds, default=30.0, metavar="SECONDS", help="default 30"
    )

    receive = commands.add_parser(
        "receive", parents=[client], help="receive messages and print their values, one per line"
    )
    receive.set_defaults(command="messages:receive")
    receive.add_argument("queue", type=argument.text, metavar="QUEUE")
    receive.add_argument(
        "--count",
        type=argument.number(0),
        default=1,
        metavar="N",
        help="number of messages; default 1; 0 = until none comes within the timeout",
    )
    receive.add_argument(
        "--timeout",
        type=argument.seconds,
        default=5.0,
        metavar="SECONDS",
        help="wait for each message; default 5",
    )
    receive.add_argument(
        "--ack", action=argparse.BooleanOptionalAction, default=True, help="--no-ack leaves them in the queue"
    )
    receive.add_argument(
        "--verbose",
        "-v",
        action="store_true",
        help="also print partition, offset, priority, deliveries, key and headers",
    )


if __name__ == "__main__":
    sys.exit(main())
