"""Staged sets of the model: tokens, writer epochs and commit markers (docs/rules.md, "Staged sets"),
row by row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mq_wire.errors import (
    BatchMismatch,
    CheckpointTooOld,
    EpochFenced,
    InvalidRequest,
    OutOfOrder,
    SequenceReused,
    StagedSetUnknown,
)
from spark_tests.model.model import Model
from spark_tests.model.state import Row, StagedBatch, StagedSet

#: The marker of a write without a transaction lives this long.
WRITE_MARKER_TTL_US = 24 * 3600 * 1_000_000


def stage(
    model: Model,
    where: tuple[str, int],
    token: bytes,
    writer: tuple[int, str, int, str | None],
    first: int,
    rows: Sequence[tuple[bytes, int]],
    crc: int,
    now_us: int,
) -> int:
    """Returns how many rows had been staged before; `writer` is (epoch, query id, batch id, target)."""
    epoch, query, batch, target = writer
    model.destination(where[0])
    if target not in (None, "", where[0]):
        raise InvalidRequest(str(target))
    if batch <= model.fenced.get(query, -1):
        raise EpochFenced(str(writer))
    newest = lowest_epoch(model, query, target)
    if epoch < newest:
        raise EpochFenced(str(writer))
    held = model.staged.get(token)
    if held is None and first:
        raise StagedSetUnknown(token.hex())
    if held is not None and (held.epoch, held.query, held.batch, held.target) != writer:
        raise InvalidRequest(token.hex())
    if query and epoch > newest:
        _discard(model, _of_query(model, query, target))
    known_batches = (
        [known for known in held.batches if (known.destination, known.partition) == where]
        if held is not None
        else []
    )
    expected = sum(len(known.rows) for known in known_batches)
    if first > expected:
        raise OutOfOrder(str(first))
    if first < expected:
        for known in known_batches:
            if (known.first, len(known.rows), known.crc) == (first, len(rows), crc):
                return len(rows)
        raise SequenceReused(str(first))
    held = model.staged.setdefault(token, StagedSet(epoch, query, batch, target))
    held.batches.append(StagedBatch(*where, first, crc, list(rows)))
    held.time_us = held.seen_us = now_us
    _raise_epoch(model, query, target, epoch)
    return 0


def lowest_epoch(model: Model, query: str, target: str | None) -> int:
    """Returns the lowest epoch that may write for a query to a target (None = to all of them)."""
    known = model.query_epochs.get(query, {})
    return max(
        (epoch for name, epoch in known.items() if target is None or name in (None, target)), default=0
    )


def _raise_epoch(model: Model, query: str, target: str | None, epoch: int) -> None:
    if query and epoch > model.query_epochs.get(query, {}).get(target, 0):
        model.query_epochs.setdefault(query, {})[target] = epoch


def _of_query(model: Model, query: str, target: str | None) -> list[bytes]:
    """Returns the sets of a query to a target; a set without target is to every one, and None asks for
    all.
    """
    return [
        token
        for token, held in model.staged.items()
        if held.query == query and (target is None or held.target in (None, target))
    ]


def take_epoch(model: Model, query: str, target: str | None) -> int:
    """Returns a number above all others; the older writers of the query to the target are over, and what they
    staged is gone.
    """
    model.epoch += 1
    if query:
        _discard(
            model,
            [token for token in _of_query(model, query, target) if model.staged[token].epoch < model.epoch],
        )
        _raise_epoch(model, query, target, model.epoch)
    return model.epoch


def commit(
    model: Model,
    tokens: Sequence[tuple[bytes, int]],
    owner: str,
    target: str,
    version: int,
    rows: int,
    now_us: int,
    keep: bool = False,
    query_id: str = "",
) -> tuple[bool, int]:
    """Returns (committed before, rows)."""
    query = owner[6:] if owner.startswith("query:") else ""
    if query and query_id not in ("", query):
        raise InvalidRequest(query_id)
    who = query or query_id
    older = [
        token for token in _of_query(model, query, target) if query and model.staged[token].batch <= version
    ]
    sets = (model.staged.get(token) for token, _ in tokens)
    chosen = [held for held in sets if held is not None and held.query == query]
    if owner and (owner, target) in model.markers:
        known_version, known_rows, known_query, _ = model.markers[owner, target]
        if version <= known_version and who and known_query and who != known_query:
            raise BatchMismatch(who)
        if version < known_version:
            raise CheckpointTooOld(str(version))
        if version == known_version:
            if rows != known_rows and not keep:
                raise BatchMismatch(str(rows))
            _discard(model, [*(token for token, _ in tokens), *older])
            _end_epochs(model, query, chosen)
            return True, known_rows
    for token, count in tokens:
        held = model.staged.get(token)
        if held is None or held.count != count:
            raise StagedSetUnknown(token.hex())
        if held.target not in (None, target):
            raise InvalidRequest(str(held.target))
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
        model.markers[owner, target] = (version, rows, who, now_us)
        for plan in (
            plan for d in model.destinations.values() for c in d.consumers.values() for plan in c.kept()
        ):
            plan.committed = plan.committed or (query, version) in plan.batches
    _discard(model, older)
    _end_epochs(model, query, chosen)
    return False, rows


def _end_epochs(model: Model, query: str, sets: Sequence[StagedSet]) -> None:
    """Writers whose sets are committed write no more."""
    for held in sets:
        if query and held.epoch >= lowest_epoch(model, query, held.target):
            _raise_epoch(model, query, held.target, held.epoch + 1)


def discard(model: Model, tokens: Sequence[bytes]) -> int:
    return _discard(model, tokens)


def _discard(model: Model, tokens: Iterable[bytes]) -> int:
    gone = [model.staged.pop(token) for token in tokens if token in model.staged]
    return sum(held.count for held in gone)


def discard_readers(model: Model, batches: set[tuple[str, int]]) -> None:
    for query, batch in batches:
        _discard(
            model, [token for token in _of_query(model, query, None) if model.staged[token].batch <= batch]
        )


def expire(model: Model, now_us: int) -> None:
    for (owner, target), (_, _, _, time_us) in list(model.markers.items()):
        if owner.startswith("write:") and now_us - time_us > WRITE_MARKER_TTL_US:
            del model.markers[owner, target]
    for held in model.staged.values():
        if held.seen_us is None:
            held.seen_us = now_us - min(max(now_us - held.time_us, 0), model.staged_ttl_us // 2)
    limit = now_us - model.staged_ttl_us
    _discard(
        model,
        [token for token, held in model.staged.items() if held.seen_us is not None and held.seen_us < limit],
    )


def last_committed(model: Model, query: str) -> int | None:
    """Returns the last batch of a query that our sink has committed, to any target."""
    return max(
        (
            version
            for (owner, _), (version, *_) in model.markers.items()
            if query and owner == f"query:{query}"
        ),
        default=None,
    )
