"""Key sequence: the position of one key and its waiting messages, in this process."""

from __future__ import annotations

import asyncio

from warren.patterns.resequencer.rules import Position


class KeySequence:
    """Position of one key and its waiting messages, in this process.

    :ivar is_handling: one of its messages is being handled.
    :ivar last_handled: last number whose handler returned.
    :ivar is_saved: the store has the position.
    :ivar is_loaded: the position was read from the store.
    :ivar start_is_unknown: neither the store nor the configuration has the first number.
    :ivar last_progress: time since which no message was handled, or the first one began to wait.
    :ivar users: messages that use this object, so it must not be deleted.
    """

    def __init__(self, position: Position) -> None:
        self.position: Position = position
        self.last_progress: float = 0.0
        self.is_handling: bool = False
        self.is_saved: bool = True
        self.users: int = 0
        self.last_handled: int | None = None
        self.is_loaded: bool = False
        self.start_is_unknown: bool = False
        self.loading: asyncio.Lock = asyncio.Lock()
        self._waiting: dict[int, list[asyncio.Future[bool]]] = {}

    def wait(self, number: int, now: float) -> asyncio.Future[bool]:
        """Register a waiting message; the future's result is False if it must make room."""
        if not self._waiting:
            self.last_progress = now
        ready: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(number, []).append(ready)
        return ready

    def remove(self, number: int, ready: asyncio.Future[bool]) -> None:
        """Remove a waiting message."""
        waiters = self._waiting[number]
        waiters.remove(ready)
        if not waiters:
            del self._waiting[number]

    def evict_beyond(self, number: int) -> bool:
        """Evict the waiting message with the highest number above `number`; return False if there is none."""
        last = max(self._waiting, default=number)
        waiting = [ready for ready in self._waiting.get(last, ()) if not ready.done()]
        if last <= number or not waiting:
            return False
        waiting[-1].set_result(False)
        return True

    def evict_all(self) -> None:
        """Evict all waiting messages."""
        for waiters in self._waiting.values():
            for ready in waiters:
                if not ready.done():
                    ready.set_result(False)

    def is_stalled(self, gap: float, now: float) -> bool:
        """Return whether nothing has moved for `gap` seconds and the next number is missing."""
        return (
            now - self.last_progress >= gap
            and not self.is_handling
            and bool(self._waiting)
            and self.first_waiting() > self.position.next_number
        )

    def first_waiting(self) -> int:
        """Return the lowest waiting number."""
        return min(self._waiting)

    def reset(self, position: Position) -> None:
        """Forget the position, so that it is read again. While a message is being handled, keep it as the minimum."""
        self.is_loaded = False
        if not self.is_handling:
            self.position, self.is_saved = position, True

    def move(self, position: Position, now: float, *, is_saved: bool) -> None:
        """Set the position at time `now`."""
        self.position, self.last_progress, self.is_saved = position, now, is_saved

    def release_ready(self) -> None:
        """Release the waiting messages whose number is next, or past."""
        for number, waiters in self._waiting.items():
            if number <= self.position.next_number:
                for ready in waiters:
                    if not ready.done():
                        ready.set_result(True)


__all__ = ["KeySequence"]
