"""Planted bugs are caught: those of a choice that changes with the seed. `make bugs` plants them all."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import pytest

from spark_tests.planted import searching as module
from spark_tests.planted.catalogue import BUGS, ROOMS
from spark_tests.planted.runs import RUNS, Finding, first_seed, search
from spark_tests.planted.searching import searcher
from spark_tests.support.planting import Bug, Change
from spark_tests.support.seeds import seeded

#: No new bug is planted when this much time has gone, and so many were caught.
_SECONDS: Final = 30.0
_SECONDS_EACH: Final = 40.0
_LEAST: Final = 5


def test_the_catalogue_is_in_order() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 20
    assert {bug.run for bug in BUGS} == set(RUNS)


@pytest.mark.parametrize("room", ROOMS)
def test_bugs_still_fit_the_product(room: str) -> None:
    """Whoever rewrites what a bug is planted into is told here."""
    for bug in ROOMS[room]:
        with bug.planted():
            pass


@pytest.mark.timeout(600)
def test_planted_bugs_are_caught() -> None:
    """As many as time allows, one of each room first. A search that takes long is left to `make bugs`."""
    rng = seeded("planted bugs")
    common = {room: [bug for bug in bugs if not bug.is_rare] for room, bugs in ROOMS.items()}
    chosen = [rng.choice(bugs) for bugs in common.values()]
    others = [bug for bugs in common.values() for bug in bugs if bug not in chosen]
    chosen = rng.sample(chosen, len(chosen)) + rng.sample(others, len(others))
    began, caught = time.monotonic(), 0
    with searcher() as searching:
        for bug in chosen:
            if caught >= _LEAST and time.monotonic() - began > _SECONDS:
                return
            found = searching.search(bug.name, _SECONDS_EACH)
            caught += found.finding is not None
            assert found.finding is not None or found.histories < RUNS[bug.run].histories_max, (
                f"{bug.name} ({bug.wrong}) is not caught by {bug.run} within {found.histories} histories"
            )
    assert caught >= _LEAST, f"only {caught} of {len(chosen)} planted bugs are caught"


@pytest.mark.parametrize("name", RUNS)
def test_nothing_is_caught_without_a_bug(name: str) -> None:
    found = search(RUNS[name], first_seed(f"control of {name}"), histories_max=2)
    assert found.finding is None, str(found.finding)


def test_a_search_that_never_ends_or_dies_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    with searcher() as searching:
        assert searching.search("no bug has this name", 0.0).finding == Finding(
            "the process died", "exit code 1"
        )
        with monkeypatch.context() as patch:
            patch.setattr(module, "_HANG_S", 0.001)
            hung = searching.search(BUGS[0].name, 0.0)
        assert hung.finding is not None
        assert hung.finding.check == "it never ends"
        again = searching.search(BUGS[0].name, 40.0)
        assert again.finding is None or again.finding.check != "it never ends"


# -- planting itself ---------------------------------------------------------------------------------------


def doubled(number: int) -> int:
    result = number * 2
    if number > 100:
        result = number * 2 + 1
    return result


def planted(*changes: Change) -> Bug:
    return Bug("a bug", "nothing of the product", changes, "simulation")


def test_a_bug_is_there_for_a_while_and_wherever_the_function_is_known() -> None:
    known_elsewhere: Callable[[int], int] = doubled
    with planted(
        Change(doubled, "result = number * 2\nif number", "result = number * 3\nif number")
    ).planted():
        assert known_elsewhere(2) == 6
    assert known_elsewhere(2) == 4


def test_changes_of_one_function_add_up() -> None:
    with planted(Change(doubled, "number > 100", "number > 10"), Change(doubled, "* 2 + 1", "* 5")).planted():
        assert (doubled(2), doubled(20)) == (4, 100)


def in_lines(number: int) -> int:
    return max(
        number,
        100,
    )


def test_line_breaks_of_the_product_do_not_matter() -> None:
    with planted(Change(in_lines, "max(number, 100)", "min(number, 100)")).planted():
        assert in_lines(2) == 2
    assert in_lines(2) == 100


@pytest.mark.parametrize(("text", "found"), [("number * 4", 0), ("number * 2", 2)])
def test_a_bug_that_does_not_fit_is_no_bug(text: str, found: int) -> None:
    bug = planted(Change(doubled, text, "0"))
    with pytest.raises(AssertionError, match=f"has {found} times what a planted bug replaces"), bug.planted():
        pass
    assert doubled(2) == 4
