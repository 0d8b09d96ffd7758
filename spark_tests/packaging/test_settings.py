"""What is written down in more than one place says the same everywhere."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from importlib import metadata

from mq_broker.config import BrokerConfig
from pyspark_mq.spark.options import SinkOptions, SourceOptions
from spark_tests.support.tree import PROJECT

BROKER_TOML = PROJECT / "conf" / "broker.toml"


def test_the_config_file_equals_the_defaults() -> None:
    assert BrokerConfig.from_toml(BROKER_TOML) == BrokerConfig()


def test_the_config_file_has_every_setting_with_its_comment() -> None:
    text = BROKER_TOML.read_text(encoding="utf-8")
    settings = {setting.name: setting for setting in dataclasses.fields(BrokerConfig)}
    assert list(tomllib.loads(text)) == list(settings), "every setting, in the order of BrokerConfig"
    commented = re.findall(r"^# (.+)\n([a-z_]+) = ", text, re.MULTILINE)
    assert [name for _, name in commented] == list(settings), "every setting has its comment just above"


def test_the_installed_version_is_that_of_the_changelog() -> None:
    newest = re.search(r"^## (\S+)", (PROJECT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest is not None
    assert metadata.version("pyspark-mq") == newest[1]


def test_floors_are_not_above_those_of_spark() -> None:
    """Both must fit into one environment: what we ask for is met by what pyspark[connect] asks for at
    least.
    """
    spark = dict(
        re.findall(
            r"^([\w-]+)>=([\d.]+); extra == \"connect\"",
            "\n".join(metadata.requires("pyspark") or []),
            re.MULTILINE,
        )
    )
    ours = dict(
        re.findall(r"^([\w-]+)>=([\d.]+)$", "\n".join(metadata.requires("pyspark-mq") or []), re.MULTILINE)
    )
    assert {"grpcio", "pyarrow", "numpy"} <= spark.keys() & ours.keys()
    for name in spark.keys() & ours.keys():
        assert [int(part) for part in ours[name].split(".")] <= [
            int(part) for part in spark[name].split(".")
        ], name


def test_the_readme_names_only_targets_that_exist() -> None:
    targets = set(
        re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    for document in PROJECT.glob("*.md"):
        named = set(re.findall(r"`make ([a-z-]+)", document.read_text(encoding="utf-8")))
        assert named <= targets, document.name


def test_the_readme_has_every_option_with_its_default() -> None:
    readme = (PROJECT / "README.md").read_text(encoding="utf-8")
    for title, options, optional in (
        ("source", SourceOptions, "consumer"),
        ("sink", SinkOptions, "txnAppId"),
    ):
        section = readme.split(f"### Options of the {title}\n")[1].split("\n#")[0]
        table = dict(re.findall(r"^\| `(\w+)`(?:, `\w+`)? \| `?([^|`]+?)`? \|", section, re.MULTILINE))
        defaults = {camel(field.name): field.default for field in dataclasses.fields(options)}
        defaults.pop("txnVersion", None)  # shares a line with txnAppId
        assert table.keys() == defaults.keys()
        for name, default in defaults.items():
            if name == "queue":
                assert table[name] == "(required)"
            elif name == optional:
                assert table[name] == "(none)"
            else:
                assert options.parse({"queue": "q", name: table[name]}) == options.parse({"queue": "q"}), name
                assert default != "", name


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
