"""Tables and pairs with aligned columns, as plain text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mq_broker.console.output import put


def print_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints a table. Numbers have separators and are aligned to the right, everything else to the left."""
    cells = [list(row) for row in rows]
    texts = [list(heads), *([_text(cell) for cell in row] for row in cells)]
    widths = [max(len(row[i]) for row in texts) for i in range(len(heads))]
    right = [
        all(isinstance(row[i], (int, float)) for row in cells) and bool(cells) for i in range(len(heads))
    ]
    for row in texts:
        line = "  ".join(
            text.rjust(width) if flush else text.ljust(width)
            for text, width, flush in zip(row, widths, right, strict=True)
        )
        put(line.rstrip())


def print_pairs(pairs: Iterable[tuple[str, object]]) -> None:
    """Prints names and values in two columns."""
    texts = [(name, _text(value)) for name, value in pairs]
    width = max(len(name) for name, _ in texts)
    for name, text in texts:
        put(f"{name.ljust(width)}  {text}".rstrip())


def age(milliseconds: int) -> str:
    """Returns a duration as text: `0 s`, `12 s`, `3 min`, `5.2 h`, `8.1 d`."""
    seconds = milliseconds / 1000
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} d"


def size(count: int) -> str:
    """Returns a number of bytes as text: `512 B`, `3.0 MiB`."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _text(cell: object) -> str:
    return f"{cell:,}" if isinstance(cell, int) else str(cell)
