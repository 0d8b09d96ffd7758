from __future__ import annotations

import dataclasses
import pathlib

import pytest

from mq_broker.config import BrokerConfig
from mq_wire.errors import InvalidOption


def test_flags_beat_the_file_and_the_file_beats_the_defaults(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text("port = 1000\ndefault_partitions = 9\n")
    config = BrokerConfig.from_toml(path, port=2000)
    assert (config.port, config.default_partitions, config.host) == (2000, 9, BrokerConfig().host)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 5", "did you mean 'port'"),
        ("port = 'x'", "port = 'x' is not a whole number: give one, such as 7654"),
        ("port = true", "port = true is not a whole number"),
        ("auto_create_destinations = 1", "1 is not true or false: give one, such as true"),
        ("port = 70000", "give 0 to 65535"),
        ("data_dir = ''", "data_dir is empty"),
        ("port = ", "not TOML"),
        ("publish_bytes_max = 999999999", "publish_bytes_total_max"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name_and_the_remedy(
    tmp_path: pathlib.Path, text: str, message: str
) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(text)
    with pytest.raises(InvalidOption, match=message) as caught:
        BrokerConfig.from_toml(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InvalidOption, match=r"nowhere\.toml"):
        BrokerConfig.from_toml(tmp_path / "nowhere.toml")


def test_every_setting_says_what_it_is() -> None:
    for setting in dataclasses.fields(BrokerConfig):
        assert setting.metadata["summary"], setting.name


def test_what_editors_and_addresses_put_around_values_is_taken(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_bytes(b'\xef\xbb\xbfhost = "[::1]"\n')
    assert BrokerConfig.from_toml(path).host == "::1"
    assert BrokerConfig(host="[::]").host == "::"


def test_what_grpc_could_not_count_is_refused() -> None:
    with pytest.raises(InvalidOption, match="give 1 to 1000000"):
        BrokerConfig(connections_max=10**23)
