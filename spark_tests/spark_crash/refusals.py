"""Which failures of a query count as a clear refusal: their words name the cause, and what to do about it."""

from __future__ import annotations

import re
from typing import Final

#: The remedies: another checkpoint, or the option that goes on without the rows.
_REMEDY: Final = (
    r"start with (a new|another) (one|checkpoint)|(a new|another) checkpoint|failOnDataLoss=false"
)
_LOST: Final = re.compile(rf"checkpoint.*({_REMEDY})", re.IGNORECASE | re.DOTALL)
#: Spark itself found that its commit log knows the batch already: the offsets alone were lost. Of batch 0 it
#: says no more than that.
_BY_SPARK: Final = re.compile(
    r"CONCURRENT_STREAM_LOG_UPDATE|assertion failed|streaming queries are concurrently using", re.IGNORECASE
)
_TWO_READERS: Final = re.compile(r"\b(twice|two readers|second reader)\b", re.IGNORECASE)


def is_refusal(error: str) -> bool:
    """Whether a query failed because its checkpoint is not the one that the broker knows, and says so."""
    return bool(_LOST.search(error))


def is_by_spark(error: str) -> bool:
    """Whether Spark refused the checkpoint by itself."""
    return bool(_BY_SPARK.search(error))


def names_two_readers(error: str) -> bool:
    """Whether a query failed because it reads one queue twice, and says so."""
    return bool(_TWO_READERS.search(error))
