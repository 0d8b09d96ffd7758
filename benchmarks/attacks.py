"""What one client can cost another: `make bench-attacks`.

Each attack of spark_tests/hostile/attacks runs against a broker of its own, beside an innocent client in
another process that sends, receives, acknowledges and asks. Its rounds are timed alone first, then while the
attack lasts. All share this machine, the attacker too.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import platform
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Final

from spark_tests.hostile.attacks.catalogue import ATTACKS
from spark_tests.hostile.siege import PEAK_BYTES_MAX, STOP_S_MAX, Attack, Report, Siege

#: What 99 of 100 rounds keep to while somebody attacks, in seconds; and where the attack is work that anybody
#: may ask for.
P99_S_MAX: Final = 0.05
P99_LAWFUL_S_MAX: Final = 0.5
_ALONE_ROUNDS: Final = 200


@dataclass(frozen=True)
class Measured:
    """One attack: the innocent client's rounds alone, what the attack has cost, and what else went wrong."""

    attack: Attack
    alone: Report | None
    report: Report | None
    trouble: str = ""

    @property
    def floor_s(self) -> float:
        return P99_LAWFUL_S_MAX if self.attack.lawful else P99_S_MAX

    @property
    def verdict(self) -> str:
        if self.trouble or self.report is None:
            return self.trouble
        wrong = []
        if self.report.took_s(0.99) >= self.floor_s:
            wrong.append("SLOW")
        if self.report.peak.rss_anon_bytes - self.report.before.rss_anon_bytes >= PEAK_BYTES_MAX:
            wrong.append("LARGE")
        if (
            self.report.after.rss_anon_bytes - self.report.before.rss_anon_bytes
            >= self.report.attack.left_bytes_max
        ):
            wrong.append("KEPT")
        if failed := sum(1 for round_ in self.report.rounds if round_["error"]):
            wrong.append(f"{failed} ROUNDS FAILED")
        return " ".join(wrong) or "ok"


def measure(attack: Attack, folder: pathlib.Path, rounds: int, scale: float) -> Measured:
    """Measures one attack on a broker of its own."""
    siege = Siege(folder, attack.limits, **attack.settings)
    alone: Report | None = None
    report: Report | None = None
    try:
        siege.witness.wait_for(20)  # the first are colder
        alone = siege.endure(Attack("alone", lambda target: None), _ALONE_ROUNDS, measured=True)
        report = siege.endure(attack, rounds, scale, measured=True)
        began = time.monotonic()
        siege.end()
        return Measured(attack, alone, report, "" if time.monotonic() - began < STOP_S_MAX else "SLOW END")
    except Exception as error:  # one attack that wins does not hide the others
        siege.abandon()
        return Measured(
            attack,
            alone,
            report,
            f"{type(error).__name__}: {str(error).splitlines()[0][:100] if str(error) else ''}",
        )


def row(measured: Measured) -> tuple[str, ...]:
    """One line of the table, as texts."""
    if measured.alone is None or measured.report is None:
        return (measured.attack.name, *[""] * 10, measured.verdict)
    latencies = [
        f"{report.took_s(share) * 1000:.1f}"
        for report in (measured.alone, measured.report)
        for share in (0.5, 0.99, 1)
    ]
    before = measured.report.before.rss_anon_bytes
    memory = [
        f"{(used.rss_anon_bytes - before) >> 20:+d}" for used in (measured.report.peak, measured.report.after)
    ]
    numbers = (*latencies, f"{measured.floor_s * 1000:.0f}", *memory, f"{measured.report.back_s:.1f}")
    return (measured.attack.name, *numbers, measured.verdict)


HEADS: Final = ("", "p50", "p99", "max", "p50", "p99", "max ms", "floor", "peak", "left MiB", "back s", "")


def table(measured: list[Measured]) -> str:
    """All attacks as aligned text: three latencies alone, three under attack, memory beyond what there was
    before.
    """
    rows = [HEADS, *(row(one) for one in measured)]
    widths = [max(len(line[column]) for line in rows) for column in range(len(HEADS))]
    last = len(HEADS) - 1
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column in (0, last) else cell.rjust(width)
            for column, (cell, width) in enumerate(pairs)
        ).rstrip()
        for pairs in ([*zip(line, widths, strict=True)] for line in rows)
    )


def main() -> int:
    """Returns the exit code: 1 where a promise was broken."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="attacks whose names hold this text")
    parser.add_argument(
        "--rounds",
        type=int,
        default=100,
        help="rounds of the innocent client at the height of each (default %(default)s)",
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="how much larger than in the tests (default %(default)s)"
    )
    options = parser.parse_args()
    found: list[Measured] = []
    for number, attack in enumerate(attack for name, attack in ATTACKS.items() if options.only in name):
        with tempfile.TemporaryDirectory(prefix="mq-attacks-", ignore_cleanup_errors=True) as folder:
            found.append(
                measure(attack, pathlib.Path(folder) / f"broker-{number}", options.rounds, options.scale)
            )
        sys.stderr.write(f"  {attack.name}: {found[-1].report or found[-1].verdict}\n")
    print(
        f"\n{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}; alone, then "
        f"under attack\n"
    )
    print(table(found))
    return 0 if all(one.verdict == "ok" for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
