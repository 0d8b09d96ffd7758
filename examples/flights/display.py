"""The output of the demo: progress bars, lines about events, and the table at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

LABELS = {
    9: "more than 2 h late",
    8: "more than 1 h late",
    7: "more than 30 min late",
    6: "more than 15 min late",
    5: "a little late",
    4: "on time",
    2: "cancelled",
}
STEPS = {
    "publish": "flights into queue [b]flights[/b]",
    "enrich": "Spark: [b]flights[/b] to [b]enriched[/b]",
    "read": "results out of [b]enriched[/b]",
}


class Display:
    """Draws progress bars on a terminal. Without a terminal it writes plain lines.

    Args:
        console: where to draw.
        rows: number of rows of each step.
    """

    def __init__(self, console: Console, rows: int) -> None:
        self.console = console
        self.seconds: dict[str, float] = {}
        self._started = time.monotonic()
        self._progress = Progress(
            TextColumn("  {task.description:<34}"),
            BarColumn(bar_width=36),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}
        for name, description in STEPS.items():
            self._tasks[name] = self._progress.add_task(description, total=rows, start=False, note="")

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Context that measures the time of one step."""
        self._progress.start_task(self._tasks[name])
        started = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - started
        self._progress.stop_task(self._tasks[name])

    def advance(self, name: str, done: int, note: str = "") -> None:
        """Shows that `done` rows of a step are done."""
        self._progress.update(self._tasks[name], completed=done, note=note)

    def say(self, text: str) -> None:
        """Adds a line above the bars."""
        elapsed = time.monotonic() - self._started
        self._progress.console.print(f"  [dim]{elapsed:6.1f} s[/dim]  {text}")


def summary_table(summary: pa.Table) -> Table:
    """Returns a table of the flights by priority. The mean batch shows that urgent flights came first."""
    table = Table(title="In which batch flights were processed", title_justify="left", header_style="bold")
    for title in ("priority", "flights", "rows", "mean batch", "made up in the air"):
        table.add_column(title, justify="left" if title == "flights" else "right")
    for row in summary.to_pylist():
        priority, made_up = row["priority"], row["made_up_mean"]
        style = "bold red" if priority == 9 else "dim" if priority < 4 else ""
        minutes = "-" if made_up is None else f"{made_up:+.1f} min"
        table.add_row(
            str(priority),
            LABELS[priority],
            f"{row['rows']:,}",
            f"{row['batch_mean']:.1f}",
            minutes,
            style=style,
        )
    return table


def verdict(facts: list[tuple[str, str]], good: bool) -> Panel:
    """Returns the result in a frame, which is green if `good`: no row was lost or doubled."""
    table = Table.grid(padding=(0, 2))
    for name, value in facts:
        table.add_row(f"[dim]{name}[/dim]", value)
    return Panel(
        table,
        title="exactly once" if good else "NOT exactly once",
        border_style="green" if good else "red",
        expand=False,
    )
