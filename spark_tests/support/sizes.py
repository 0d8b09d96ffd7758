"""How large what tests make is."""

from __future__ import annotations

#: Journals of a broker for tests: three files of the usual 128 MiB would be written for nothing, some two
#: hundred times.
SEGMENT_BYTES = 32 << 20
