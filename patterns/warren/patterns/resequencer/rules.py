"""The line of one key: how far it has come, and who waits for his turn."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Final

from warren.patterns.stores import RuleResult

SKIPPED: Final = 100


@dataclass(frozen=True, slots=True)
class Place:
    """How far a key has come.

    :ivar following: the number that is next.
    :ivar skipped: first and last of what was given up, the latest.
    """

    following: int
    skipped: tuple[tuple[int, int], ...] = ()

    def gave_up(self, number: int) -> bool:
        return any(first <= number <= last for first, last in self.skipped)

    def skip_to(self, number: int) -> Place:
        return Place(number, (*self.skipped, (self.following, number - 1))[-SKIPPED:])


class Line:
    """The messages of one key, in this process.

    :ivar busy: one of them is handled.
    :ivar handled: the last number whose handler returned.
    :ivar saved: the store knows the place.
    :ivar unknown: nobody knows yet with which number it begins.
    :ivar since: since when it stands still: nobody has waited, or moved on, for so long.
    """

    def __init__(self, place: Place) -> None:
        self.place: Place = place
        self.since: float = 0.0
        self.busy: bool = False
        self.saved: bool = True
        self.users: int = 0
        self.handled: int | None = None
        self.loaded: bool = False
        self.unknown: bool = False
        self.loading: asyncio.Lock = asyncio.Lock()
        self._waiting: dict[int, list[asyncio.Future[bool]]] = {}

    def wait(self, number: int, now: float) -> asyncio.Future[bool]:
        if not self._waiting:
            self.since = now
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(number, []).append(turn)
        return turn

    def leave(self, number: int, turn: asyncio.Future[bool]) -> None:
        turns = self._waiting[number]
        turns.remove(turn)
        if not turns:
            del self._waiting[number]

    def evict_beyond(self, number: int) -> bool:
        """Have the last one that waits make room, if it comes after `number`."""
        last = max(self._waiting, default=number)
        waiting = [turn for turn in self._waiting.get(last, ()) if not turn.done()]
        if last <= number or not waiting:
            return False
        waiting[-1].set_result(False)
        return True

    def evict_all(self) -> None:
        for turns in self._waiting.values():
            for turn in turns:
                if not turn.done():
                    turn.set_result(False)

    def stands_still(self, gap: float, now: float) -> bool:
        """Nothing has moved for `gap` seconds, and what is next is not here."""
        return (
            now - self.since >= gap
            and not self.busy
            and bool(self._waiting)
            and self.first_waiting() > self.place.following
        )

    def first_waiting(self) -> int:
        return min(self._waiting)

    def forget(self, place: Place) -> None:
        """Know nothing any more of how far the key has come, unless one is just handled: then it is `place` at least."""
        self.loaded = False
        if not self.busy:
            self.place, self.saved = place, True

    def move(self, place: Place, now: float, *, saved: bool) -> None:
        self.place, self.since, self.saved = place, now, saved

    def wake(self) -> None:
        """Those whose turn has come, or is over."""
        for number, turns in self._waiting.items():
            if number <= self.place.following:
                for turn in turns:
                    if not turn.done():
                        turn.set_result(True)


def advance(record: bytes | None, *, place: Place, keep_ms: int) -> RuleResult[bytes | None]:
    held = read(record)
    if held is not None and held.following > place.following:
        return RuleResult(record, record)
    written = json.dumps([place.following, place.skipped], separators=(",", ":")).encode()
    return RuleResult(written, written, keep_ms)


def read(record: bytes | None) -> Place | None:
    if record is None:
        return None
    following, skipped = json.loads(record)
    return Place(following, tuple((first, last) for first, last in skipped))


__all__ = ["Line", "Place", "advance", "read"]
