"""`mq broker`."""

from __future__ import annotations

import argparse
import dataclasses

from mq_broker.config import BrokerConfig
from mq_broker.console.main import version
from mq_broker.process import BrokerProcess


def run(options: argparse.Namespace) -> int:
    """Runs a broker until it is told to stop."""
    flags = {
        setting.name: getattr(options, f"set_{setting.name}") for setting in dataclasses.fields(BrokerConfig)
    }
    given = {name: value for name, value in flags.items() if value is not None}
    config = (
        BrokerConfig.from_toml(options.config, **given)
        if options.config is not None
        else BrokerConfig.of(given)
    )
    return BrokerProcess(config, version()).run(stop_with_stdin=options.stop_with_stdin)
