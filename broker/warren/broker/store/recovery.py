"""Reads the log after a start: which messages of which queues are live, and what was damaged."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection
from itertools import pairwise
from typing import Final

from .errors import disk_error
from .files import Files
from .folder import DataFolder
from .reader import Damage, SegmentReader, segment_path
from .record import (
    ACK,
    BLOCK,
    FAN_OUT,
    HEADER,
    MARK,
    MESSAGE,
    Record,
    entries,
    fan_out_targets,
    seed_of,
    unpack_pairs,
)
from .segments import Live, Segment
from .writer import CLEAN

_SUFFIX: Final = ".log"


class RecoveredQueue:
    """What the log holds of one queue.

    `last_sequence` is the highest sequence that any record names: lower ones must not be used again.
    `messages` are (sequence, payload, delivery count) of the live messages, in order of their sequences.
    """

    def __init__(self) -> None:
        self.last_sequence = 0
        self.messages: list[tuple[int, bytes, int]] = []


class Recovery:
    """What `recover` found. `damage` has one line for each place that could not be read; what stood there is
    lost. After a stop that was not `clean` any message may have been delivered already."""

    def __init__(self, folder: str, files: Files, identity: int, block: int) -> None:
        self.queues: dict[int, RecoveredQueue] = {}
        self.damage: list[str] = []
        self.clean = False
        self.folder = folder
        self.files = files
        self.identity = identity
        self.block = block
        self.segments: list[Segment] = []
        self.live: dict[int, Live] = {}
        self.counts: dict[int, dict[int, int]] = {}
        self.next_segment = 1
        self.append_at = -1
        """Where the last segment goes on; -1: begin a new one."""


def recover(folder: DataFolder, known: Collection[int], *, block: int = BLOCK) -> Recovery:
    """Read the log of a data folder; cut off a torn tail; remove the mark of a clean stop.

    :param known: the incarnations of the queues that there are; records of others are dead.
    :raises StoreError: the disk cannot be read or written.
    """
    recovery = Recovery(folder.log, folder.files, folder.identity, block)
    try:
        _Reading(recovery, frozenset(known)).run()
    except OSError as error:
        raise disk_error(f"read the log in {folder.log}", error) from None
    return recovery


class _Ended:
    """The sequences of one queue that have been acknowledged, as sorted runs."""

    def __init__(self) -> None:
        self._runs: list[tuple[int, int]] = []
        self._starts: list[int] = []

    def add(self, runs: list[tuple[int, int]]) -> None:
        merged: list[tuple[int, int]] = []
        for first, last in sorted(self._runs + runs):
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
            else:
                merged.append((first, last))
        self._runs = merged
        self._starts = [first for first, _ in merged]

    def __contains__(self, sequence: int) -> bool:
        at = bisect_right(self._starts, sequence) - 1
        return at >= 0 and sequence <= self._runs[at][1]


class _Found:
    """The live messages of a queue in a segment: their sequences, and their bytes together."""

    def __init__(self) -> None:
        self.sequences: list[int] = []
        self.size = 0


class _Reading:
    """Reads the segments from the newest to the oldest.

    An acknowledgement is never in an older segment than its message, so only live messages are kept, and of
    two copies of a message the newer one.
    """

    def __init__(self, recovery: Recovery, known: frozenset[int]) -> None:
        self._to = recovery
        self._files = recovery.files
        self._known = known
        self._ended: dict[int, _Ended] = {incarnation: _Ended() for incarnation in known}
        self._counts: dict[int, dict[int, int]] = {incarnation: {} for incarnation in known}
        self._live: dict[int, dict[int, bytes]] = {incarnation: {} for incarnation in known}
        self._last: dict[int, int] = dict.fromkeys(known, 0)

    def run(self) -> None:
        to, files = self._to, self._files
        # What an earlier process made or unlinked must not change its mind in a later power cut.
        files.sync_folder(to.folder)
        names = files.names(to.folder)
        numbers = sorted(int(name[: -len(_SUFFIX)]) for name in names if _is_segment(name))
        last = numbers[-1] if numbers else 0
        end = self._clean_end() if CLEAN in names else None
        reports = _gaps([*numbers, end[0]] if end and end[0] > last and end[1] else numbers, last)
        for number in reversed(numbers):
            path = segment_path(to.folder, number)
            reader = SegmentReader(files, path, number, seed_of(to.identity, number), to.block)
            found = self._read(reader)
            size = files.size(path)
            damage = reader.damage
            if number == last:
                if end is not None and end[0] == number and size < end[1]:
                    text = f"segment {number} was {end[1]} bytes long and is {size} now"
                    reports.append((number, Damage(size, text)))
                if end is None:
                    # Nobody was told that what stands behind the last intact record is on the disk.
                    damage = [place for place in damage if place.offset < reader.end]
                    self._cut(path, reader.end)
                    size = reader.end
                to.append_at = size if size == reader.end else -1
            reports += [(number, place) for place in damage]
            segment = Segment(number, size)
            to.segments.insert(0, segment)
            self._enter(segment, found)
        to.next_segment = last + 1
        to.damage = [place.text for _, place in sorted(reports, key=lambda item: (item[0], item[1].offset))]
        to.clean = end is not None
        if end is not None:
            files.unlink(f"{to.folder}/{CLEAN}")
            files.sync_folder(to.folder)
        self._collect()

    def _clean_end(self) -> tuple[int, int]:
        """The last segment and its size when the log was closed."""
        words = self._files.read(f"{self._to.folder}/{CLEAN}", 0, 100).split()
        try:
            return int(words[0]), int(words[1])
        except (IndexError, ValueError):
            return 0, 0

    def _read(self, reader: SegmentReader) -> dict[int, _Found]:
        """Take in one segment; returns the live messages that are found here first, by queue."""
        ended: dict[int, list[tuple[int, int]]] = {}
        messages: list[tuple[int, int, bytes, int]] = []
        while (record := reader.next()) is not None:
            for item in entries(record):
                if item.kind == FAN_OUT:
                    table, content = fan_out_targets(item.payload)
                    share = (HEADER + len(item.payload)) * 2 // len(table)
                    for incarnation, sequence in zip(table[::2], table[1::2], strict=True):
                        if self._seen(incarnation, sequence):
                            messages.append((incarnation, sequence, content, share))
                elif item.kind == MESSAGE:
                    if self._seen(item.incarnation, item.sequence):
                        size = HEADER + len(item.payload)
                        messages.append((item.incarnation, item.sequence, item.payload, size))
                elif item.kind in (ACK, MARK) and item.incarnation in self._known:
                    self._ends_or_marks(item, ended)
        for incarnation, runs in ended.items():
            self._ended[incarnation].add(runs)
        found: dict[int, _Found] = {}
        for incarnation, sequence, payload, size in messages:
            live = self._live[incarnation]
            if sequence not in live and sequence not in self._ended[incarnation]:
                live[sequence] = payload
                here = found.get(incarnation)
                if here is None:
                    here = found[incarnation] = _Found()
                here.sequences.append(sequence)
                here.size += size
        return found

    def _seen(self, incarnation: int, sequence: int) -> bool:
        if incarnation not in self._known:
            return False
        if sequence > self._last[incarnation]:
            self._last[incarnation] = sequence
        return True

    def _ends_or_marks(self, item: Record, ended: dict[int, list[tuple[int, int]]]) -> None:
        values = unpack_pairs(item.payload)
        for first, second in zip(values[::2], values[1::2], strict=True):
            if item.kind == ACK:
                ended.setdefault(item.incarnation, []).append((first, second))
                self._seen(item.incarnation, second)
            else:
                counts = self._counts[item.incarnation]
                counts[first] = max(second, counts.get(first, 0))
                self._seen(item.incarnation, first)

    def _cut(self, path: str, size: int) -> None:
        """Cut off a torn tail. Synced even if there is none: what was read may have been in the cache only,
        and a segment that gets a successor must be whole."""
        handle = self._files.open(path)
        try:
            if self._files.size(path) > size:
                self._files.truncate(handle, size)
            self._files.sync(handle)
        finally:
            self._files.close(handle)

    def _enter(self, segment: Segment, found: dict[int, _Found]) -> None:
        """Note which messages are live in a segment."""
        for incarnation, here in found.items():
            runs: list[int] = []
            for sequence in sorted(here.sequences):
                if runs and sequence == runs[-1] + 1:
                    runs[-1] = sequence
                else:
                    runs += (sequence, sequence)
            self._to.live.setdefault(incarnation, Live()).add(segment, runs, here.size)

    def _collect(self) -> None:
        for incarnation in self._known:
            queue = self._to.queues[incarnation] = RecoveredQueue()
            queue.last_sequence = self._last[incarnation]
            counts = self._counts[incarnation]
            live = self._live.pop(incarnation)
            self._to.counts[incarnation] = {number: n for number, n in counts.items() if number in live and n}
            queue.messages = [
                (sequence, live[sequence], counts.get(sequence, 0)) for sequence in sorted(live)
            ]


def _gaps(numbers: list[int], last: int) -> list[tuple[int, Damage]]:
    """What is missing between the segments that are there, and up to the one that should be the last."""
    reports = []
    for before, after in pairwise(numbers):
        end = after if after > last else after - 1
        if end > before:
            text = (
                f"segment {end} is missing"
                if end == before + 1
                else f"segments {before + 1} to {end} are missing"
            )
            reports.append((before + 1, Damage(0, text)))
    return reports


def _is_segment(name: str) -> bool:
    return name.endswith(_SUFFIX) and name[: -len(_SUFFIX)].isdigit()


__all__ = ["RecoveredQueue", "Recovery", "recover"]
