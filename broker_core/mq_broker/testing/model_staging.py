"""Staged sets of the model: tokens, writer epochs and commit markers (design.md section 7), row by row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mq_broker.testing.model import Model, Row, StagedBatch, StagedSet
from mq_wire.errors import (
    BatchMismatch,
    CheckpointTooOld,
    EpochFenced,
    InvalidRequest,
    OutOfOrder,
    SequenceReused,
    StagedSetUnknown,
)


def stage(
    model: Model,
    where: tuple[str, int],
    token: bytes,
    writer: tuple[int, str, int],
    first: int,
    rows: Sequence[tuple[bytes, int]],
    crc: int,
    now_us: int,
) -> int:
    """Returns how many rows had been staged before; `writer` is (epoch, query id, batch id)."""
    epoch, query, batch = writer
    model.destination(where[0])
    if batch <= model.fenced.get(query, -1):
        raise EpochFenced(str(writer))
    if query and epoch < model.query_epochs.get(query, 0):
        raise EpochFenced(str(writer))
    held = model.staged.get(token)
    if held is None and first:
        raise StagedSetUnknown(token.hex())
    if held is not None and (held.epoch, held.query, held.batch) != writer:
        raise InvalidRequest(token.hex())
    if query and epoch > model.query_epochs.get(query, 0):
        _discard(model, [other for other, known in model.staged.items() if known.query == query])
    known_batches = [known for known in held.batches if (known.destination, known.partition) == where] if held is not None else []
    expected = sum(len(known.rows) for known in known_batches)
    if first > expected:
        raise OutOfOrder(str(first))
    if first < expected:
        for known in known_batches:
            if (known.first, len(known.rows), known.crc) == (first, len(rows), crc):
                return len(rows)
        raise SequenceReused(str(first))
    held = model.staged.setdefault(token, StagedSet(epoch, query, batch))
    held.batches.append(StagedBatch(*where, first, crc, list(rows)))
    held.time_us = held.seen_us = now_us
    if query and epoch > model.query_epochs.get(query, 0):
        model.query_epochs[query] = epoch
    return 0


def commit(
    model: Model, tokens: Sequence[tuple[bytes, int]], owner: str, target: str, version: int, rows: int, now_us: int, keep: bool = False
) -> tuple[bool, int]:
    """Returns (committed before, rows)."""
    query = owner.removeprefix("query:") if owner.startswith("query:") else ""
    older = [token for token, held in model.staged.items() if query and held.query == query and held.batch <= version]
    epochs = [held.epoch for token, _ in tokens if (held := model.staged.get(token)) is not None and held.query == query]
    if owner and (owner, target) in model.markers:
        known_version, known_rows = model.markers[owner, target]
        if version < known_version:
            raise CheckpointTooOld(str(version))
        if version == known_version:
            if rows != known_rows and not keep:
                raise BatchMismatch(str(rows))
            _discard(model, [*(token for token, _ in tokens), *older])
            _end_epoch(model, query, epochs)
            return True, known_rows
    for token, count in tokens:
        held = model.staged.get(token)
        if held is None or held.count != count:
            raise StagedSetUnknown(token.hex())
        if target and any(batch.destination != target for batch in held.batches):
            raise InvalidRequest(target)
    if len({token for token, _ in tokens}) < len(tokens) or sum(count for _, count in tokens) != rows:
        raise InvalidRequest(str(tokens))
    if version <= model.fenced.get(query, -1):
        raise EpochFenced(str(version))
    for token, _ in tokens:
        for batch in model.staged.pop(token).batches:
            there = model.destinations[batch.destination].partitions[batch.partition]
            for value, priority in batch.rows:
                offset = len(there.rows)
                there.rows.append(Row(batch.partition, offset, value, priority, "", offset, now_us))
    if owner:
        model.markers[owner, target] = (version, rows)
    _discard(model, older)
    _end_epoch(model, query, epochs)
    return False, rows


def _end_epoch(model: Model, query: str, epochs: Sequence[int]) -> None:
    """Whose sets are committed writes no more."""
    if query and epochs:
        model.query_epochs[query] = max(model.query_epochs.get(query, 0), max(epochs) + 1)


def discard(model: Model, tokens: Sequence[bytes]) -> int:
    return _discard(model, tokens)


def _discard(model: Model, tokens: Iterable[bytes]) -> int:
    gone = [model.staged.pop(token) for token in tokens if token in model.staged]
    return sum(held.count for held in gone)


def discard_readers(model: Model, batches: set[tuple[str, int]]) -> None:
    _discard(model, [token for token, held in model.staged.items() if (held.query, held.batch) in batches])


def expire(model: Model, now_us: int) -> None:
    for held in model.staged.values():
        if held.seen_us is None:
            held.seen_us = now_us - min(max(now_us - held.time_us, 0), model.staged_ttl_us // 2)
    limit = now_us - model.staged_ttl_us
    _discard(model, [token for token, held in model.staged.items() if held.seen_us is not None and held.seen_us < limit])


def committed_by_sink(model: Model, batches: set[tuple[str, int]]) -> bool:
    """Returns whether our sink has committed the output of any of these (query, batch)."""
    return any(
        owner == f"query:{query}" and version >= batch for (owner, _), (version, _) in model.markers.items() for query, batch in batches
    )
