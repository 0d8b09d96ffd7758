"""Bugs in what is written to the disk, and in what is read from it at a start."""

from __future__ import annotations

from typing import Final

from mq_broker.engine.rows import RowReader
from mq_broker.journal import frames
from mq_broker.journal.journal import Journal
from mq_broker.journal.recovery import TurnReader
from mq_broker.journal.segments import Segments
from spark_tests.support.planting import Bug, Change

# No single one of these lets a stale turn pass: its place, its number and the chain of trailers each tell it
# from the right one.
_NO_PLACE: Final = Change(frames.decode, "if (at_segment, at_position) != (segment, position):", "if False:")
_NO_CHAIN: Final = Change(
    TurnReader._read_turn,
    "if trailer != Trailer(start, self.position.trailer_crc, entries_crc) or not "
    "self._follows(frame.generation, entries):",
    "if trailer.entries_crc != entries_crc:",
)
_ANY_NUMBER: Final = (
    Change(
        TurnReader._read_turn,
        "if (frame.turn, frame.generation, frame.index) != (expected, generation, len(entries)):",
        "if frame.index != len(entries):",
    ),
    Change(
        TurnReader._read_turn,
        "if (frame.turn, frame.index) != (expected, len(entries)) or (entries and frame.generation != "
        "generation):",
        "if frame.index != len(entries):",
    ),
)

WRITING: Final = (
    Bug(
        "no sync",
        "a turn counts as written once the operating system has it",
        (Change(Journal._write, "file.sync()", "pass"),),
        "journal lives",
    ),
    Bug(
        "sync of every second turn",
        "group commit that answers the first half of the group",
        (Change(Journal._write, "file.sync()", "if hand.turn % 2:\n    file.sync()"),),
        "journal lives",
    ),
    Bug(
        "sync retried after EIO",
        "a failed sync is tried once more: the kernel has marked the pages clean, and the second one "
        "succeeds",
        (Change(Journal._write, "file.sync()", "try:\n    file.sync()\nexcept OSError:\n    file.sync()"),),
        "journal lives",
    ),
    Bug(
        "failed sync is a warning",
        "EIO is swallowed, the broker goes on as if nothing had been",
        (Change(Journal._write, "file.sync()", "try:\n    file.sync()\nexcept OSError:\n    pass"),),
        "journal lives",
    ),
    Bug(
        "a failed write is passed over",
        "EIO drops the turn in hand, whose replies leave all the same",
        (
            Change(
                Journal._write,
                "except OSError as error:\n    raise self._fail(error) from error",
                "except OSError:\n    self._failure = self._tail.hand = None\n    return",
            ),
        ),
        "simulation",
    ),
    Bug(
        "directory not synced when a segment begins",
        "the new segment's name is not durable, what is written into it is",
        (Change(Segments.open_next, "self._disk.sync_directory()", "pass"),),
        "journal lives",
    ),
    Bug(
        "segment header not synced before its name",
        "a crash leaves a segment without header",
        (Change(Segments.open_next, "file.sync()", "pass"),),
        "journal lives",
    ),
)

READING: Final = (
    Bug(
        "no checksum of headers",
        "a torn header counts if its fields look right",
        (
            Change(
                frames.decode,
                "if crc32(header, crc32(view[position : position + _PREFIX.size], seed)) != crc:",
                "if False:",
            ),
        ),
        "journal lives",
    ),
    Bug(
        "no checksum of bodies at recovery",
        "torn records of the last turn are taken for records",
        (Change(frames.body_of, "return body if crc32(body) == frame.body_crc else None", "return body"),),
        "journal lives",
    ),
    Bug(
        "no checksum of bodies when read",
        "rotten records are handed out",
        (Change(Journal.body, "if verify and crc32(view) != place.crc:", "if False:"),),
        "rot",
    ),
    Bug(
        "a body is verified when it is read first, and never again",
        "what rots under a running broker is handed out",
        (
            Change(
                RowReader._body,
                "return self._journal.body(place)",
                """
                verified = self.__dict__.setdefault("verified", set())
                body = self._journal.body(place, verify=place not in verified)
                verified.add(place)
                return body
                """,
            ),
        ),
        "rot",
    ),
    Bug(
        "checksums without place",
        "bytes are held against the checksum that stands beside them: a frame in the place of another is "
        "right",
        (
            Change(
                Journal.body,
                "if verify and crc32(view) != place.crc:",
                """
                whole = self._segments.view(self._segments[place.segment])
                beside = place.position - frames.FIXED_BYTES
                while bytes(whole[beside : beside + 4]) != frames.MAGIC and beside > FIRST_POSITION:
                    beside -= frames.ALIGNMENT
                if verify and crc32(view) != int.from_bytes(whole[beside + 56 : beside + 60], "little"):
                """,
            ),
        ),
        "rot",
        is_rare=True,
    ),
    Bug(
        "stale frames of a recycled file",
        "checksums do not cover the place and turns are not chained: whole turns of an earlier use of the "
        "file count again",
        (_NO_PLACE, _NO_CHAIN, *_ANY_NUMBER),
        "journal lives",
    ),
    Bug(
        "a torn trailer is accepted",
        "a turn whose trailer did not land counts with the entries that did",
        (
            Change(
                TurnReader._read_turn,
                "if isinstance(closing, Reading):\n    return closing",
                """
                if isinstance(closing, Reading):
                    if not entries:
                        return closing
                    end = frames.align(position + TRAILER_BYTES, segment.sector_bytes)
                    position = JournalPosition(number, end, expected, generation, entries_crc)
                    return Turn(expected, entries, start, position)
                """,
            ),
        ),
        "journal lives",
    ),
    Bug(
        "the tail is cut one turn too far",
        "recovery does not trust the last turn, although it was synced",
        (
            Change(
                TurnReader.__iter__,
                """
                self.position = found.end
                self.last = found
                yield found
                """,
                """
                self.position, before = found.end, self.position
                behind = self._read_turn(self.position.segment, self.position.position)
                if isinstance(behind, Reading) and self._segments.get(self.position.segment + 1) is None:
                    self.position = before
                    return
                self.last = found
                yield found
                """,
            ),
        ),
        "journal lives",
    ),
    Bug(
        "off by one at a segment's end",
        "a turn that ends exactly where its segment ends does not read",
        (
            Change(
                frames.decode,
                "if align(body_position + body_size, ALIGNMENT) > len(view):",
                "if align(body_position + body_size, ALIGNMENT) >= len(view):",
            ),
        ),
        "journal lives",
    ),
    Bug(
        "off by one at a segment roll",
        "the reader looks for the next segment's first turn one sector too far",
        (
            Change(
                TurnReader.__iter__,
                "found = self._read_turn(self.position.segment + 1, FIRST_POSITION)",
                "found = self._read_turn(self.position.segment + 1, FIRST_POSITION + 512)",
            ),
        ),
        "journal lives",
    ),
    Bug(
        "the page cache is trusted after a failed sync",
        "recovery accepts the last turn as it sees it, without writing it again",
        (
            Change(
                Journal._settle,
                "if last is not None:",
                "if False:",
            ),
        ),
        "journal lives",
    ),
    Bug(
        "good turns cut where generations meet",
        "what an earlier process opened does not follow what its predecessor wrote",
        (
            Change(
                TurnReader._follows,
                "return generation == last or (generation == last + 1 and not entries)",
                "return generation == last or last == 0",
            ),
        ),
        "journal lives",
    ),
    Bug(
        "damage before a newer generation taken for a torn tail",
        "only turns of the same generation count as evidence: what a process wrote last is cut when it "
        "rots after a restart",
        (
            Change(
                TurnReader._behind,
                "and frame.generation >= self.position.generation",
                "and frame.generation == self.position.generation",
            ),
        ),
        "rot",
    ),
    Bug(
        "damage in the middle taken for a torn tail",
        "the journal ends at the first bad byte, and the broker goes on from there",
        (Change(TurnReader._check_end, "if frame.turn >= end.turn + 2", "if False"),),
        "rot",
    ),
    Bug(
        "stale turns stay reachable where generations meet",
        "the segment of a turn that was cut is not given back: what is in it stands where the next "
        "generation is looked for",
        (Change(Journal._give_back_unused, "if segment.number > self._tail.position.segment", "if False"),),
        "journal lives",
    ),
)
