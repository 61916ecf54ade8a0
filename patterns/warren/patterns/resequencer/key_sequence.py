"""Key sequence: the next number of one key and its waiting messages, in this process."""

from __future__ import annotations

import asyncio

from warren.patterns.resequencer.rules import Position


class KeySequence:
    """Messages of one key in this process: the next number to handle, and the messages that wait for it.

    :ivar position: next number to handle, and the latest skipped numbers.
    :ivar is_handling: True while one of the key's messages is being handled.
    :ivar last_handled: number of the last message whose handler returned.
    :ivar is_saved: True if the store has this position.
    :ivar is_loaded: True if the position was read from the store.
    :ivar start_is_unknown: True if neither the store nor the configuration has a first number; the first message to
        arrive then determines it.
    :ivar last_progress: time at which the position last changed or, if no message waited then, at which the first
        message began to wait.
    :ivar users: number of messages in progress that use this object; it must not be deleted before all have ended.
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
        """Register a message that waits for its turn, and return a future for the end of its wait. The result is True
        if the message may be handled, or was handled or skipped before. It is False if the message lost its place in
        memory (was evicted), and must be delayed in the broker.

        :param number: number of the message in the sequence.
        :param now: present time in seconds, by the App's clock.
        """
        if not self._waiting:
            self.last_progress = now
        ready: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(number, []).append(ready)
        return ready

    def remove(self, number: int, ready: asyncio.Future[bool]) -> None:
        """Remove a message from the waiting ones at the end of its wait.

        :param number: number of the message.
        :param ready: future that `wait` returned for it.
        """
        waiters = self._waiting[number]
        waiters.remove(ready)
        if not waiters:
            del self._waiting[number]

    def evict_beyond(self, number: int) -> bool:
        """Make room in memory for the message with `number`: end the wait of the message with the highest number, so
        that it is delayed in the broker instead. Return False if no waiting message has a higher number."""
        last = max(self._waiting, default=number)
        waiting = [ready for ready in self._waiting.get(last, ()) if not ready.done()]
        if last <= number or not waiting:
            return False
        waiting[-1].set_result(False)
        return True

    def evict_all(self) -> None:
        """End the wait of all messages, because the App closes or the connection was lost. Their futures get the result
        False, so that they are not handled here: each is delayed, or delivered again by the broker."""
        for waiters in self._waiting.values():
            for ready in waiters:
                if not ready.done():
                    ready.set_result(False)

    def is_stalled(self, gap: float, now: float) -> bool:
        """Return whether messages wait for a missing number, none of the key's messages is being handled, and the next
        number has not changed for `gap` seconds.

        :param now: present time in seconds, by the App's clock.
        """
        return (
            now - self.last_progress >= gap
            and not self.is_handling
            and bool(self._waiting)
            and self.first_waiting() > self.position.next_number
        )

    def first_waiting(self) -> int:
        """Return the lowest number of the waiting messages."""
        return min(self._waiting)

    def reset(self, position: Position) -> None:
        """Mark the position as not loaded, so that it is read from the store before the next message is handled.

        :param position: position in use until then. While one of the key's messages is being handled, it is ignored,
            and the present position stays.
        """
        self.is_loaded = False
        if not self.is_handling:
            self.position, self.is_saved = position, True

    def move(self, position: Position, now: float, *, is_saved: bool) -> None:
        """Set the position of the key.

        :param position: next number to handle, and the latest skipped numbers.
        :param now: time of this progress, from which the wait for a missing number counts.
        :param is_saved: True if the store has this position.
        """
        self.position, self.last_progress, self.is_saved = position, now, is_saved

    def release_ready(self) -> None:
        """End the wait of the messages whose number is the next one or a lower one: their futures get the result
        True."""
        for number, waiters in self._waiting.items():
            if number <= self.position.next_number:
                for ready in waiters:
                    if not ready.done():
                        ready.set_result(True)


__all__ = ["KeySequence"]
