"""Every kind of damage to a small directory has an allowed outcome. `make damage` goes through all of it,
`make test` through a sample.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter

import pytest

from spark_tests.damage.cases import Case, cuts, flips, whole_files
from spark_tests.damage.judging import EARLIER, REFUSED, SAME, SOME_ROWS, judge
from spark_tests.damage.small import small

#: Every so-many-th byte; 0 = a sample of each file.
STEP = int(os.environ.get("MQ_DAMAGE_STEP", "0"))
SAMPLE = 90

pytestmark = [pytest.mark.damage, pytest.mark.timeout(24 * 3600 if STEP else 300)]


def judge_all(what: str, cases: list[Case]) -> Counter[str]:
    """Counts the outcomes, and says them with -s."""
    began = time.monotonic()
    outcomes: Counter[str] = Counter()
    failures = []
    for case in cases:
        try:
            outcomes[judge(case.make(), small(), case.earlier, may_be_unknowable=case.may_be_unknowable)] += 1
        except Exception as error:
            failures.append(f"{case.name}: {type(error).__name__}: {error}")
            if len(failures) == 10:
                break
    assert not failures, "\n".join(failures)
    counted = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    sys.stdout.write(f"{what}: {len(cases)} cases in {time.monotonic() - began:.0f} s: {counted}\n")
    return outcomes


def sample(cases: list[Case], count: int, rng: random.Random) -> list[Case]:
    """As many of each file, since most bytes of a journal are unused."""
    by_file: dict[str, list[Case]] = {}
    for case in cases:
        by_file.setdefault(next(word for word in case.name.split() if ".mq" in word), []).append(case)
    each = max(count // len(by_file), 1)
    return [case for group in by_file.values() for case in rng.sample(group, min(each, len(group)))]


def test_a_bit_in_any_byte(rng: random.Random) -> None:
    outcomes = judge_all("flipped bits", flips()[::STEP] if STEP else sample(flips(), SAMPLE, rng))
    assert outcomes[SAME]
    assert outcomes[REFUSED] + outcomes[SOME_ROWS]


def test_a_file_cut_anywhere(rng: random.Random) -> None:
    outcomes = judge_all("cuts", cuts()[::STEP] if STEP else sample(cuts(), SAMPLE // 3, rng))
    assert outcomes[SAME], "an older snapshot and the journal have everything"
    assert outcomes[REFUSED]


def test_whole_files() -> None:
    outcomes = judge_all("whole files", whole_files())
    assert all(outcomes[outcome] for outcome in (SAME, EARLIER, REFUSED, SOME_ROWS))
