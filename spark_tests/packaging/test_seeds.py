"""One printed number repeats a run: MQ_SEED."""

from __future__ import annotations

import random
import zlib

import hypothesis.core
import pytest

from spark_tests.support.seeds import seeded, session_seed


def test_the_seed_reaches_hypothesis(pytestconfig: pytest.Config) -> None:
    given = pytestconfig.getoption("hypothesis_seed")
    seed: object = hypothesis.core.global_force_seed
    assert str(seed) == str(given)
    if not any(argument.startswith("--hypothesis-seed") for argument in pytestconfig.invocation_params.args):
        assert seed == zlib.crc32(session_seed().encode())


def test_each_test_has_random_numbers_of_its_own(rng: random.Random) -> None:
    assert (
        rng.random()
        == seeded(
            "spark_tests/packaging/test_seeds.py::test_each_test_has_random_numbers_of_its_own"
        ).random()
    )
    assert seeded("one").random() != seeded("two").random()
