"""Waits of operations: for work on a queue or in a lane that has to be finished before an operation acts or returns.

An operation that waits is a generator. It yields what it waits for and is resumed when that is over; its return value is
the result. A surface chooses how to wait: the HTTP API and `warren ctl` await `result_of`, AMQP methods are resumed by a
callback.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncIterator, Callable, Generator
from typing import Protocol, TypeAlias, TypeVar

from warren.broker.model.bulk_work import BulkWork
from warren.broker.model.queue.queue import Queue
from warren.wire.reply_codes import AmqpError, Reply

T = TypeVar("T")


class Wait(Protocol):
    """Condition that an operation waits for."""

    def is_over(self) -> bool:
        """Return True if there is nothing to wait for."""

    def call_when_over(self, call: Callable[[], None]) -> None:
        """Call a function once when the wait is over. Call this only while `is_over` returns False."""


Operation: TypeAlias = Generator[Wait, None, T]
"""Operation in progress, which yields its waits and returns its result."""


class UntilNotHeld:
    """Wait until no bulk work on the head of a queue is left, such as the removal of its expired messages."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def is_over(self) -> bool:
        return not self._queue.is_held()

    def call_when_over(self, call: Callable[[], None]) -> None:
        self._queue.waiters.append(call)


class UntilSettled:
    """Wait until no message of a queue is being settled, dropped or dead-lettered any more, expired ones included."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def is_over(self) -> bool:
        # This begins the removal of expired messages, which then counts as unsettled.
        self._queue.is_held()
        return self._queue.is_settled

    def call_when_over(self, call: Callable[[], None]) -> None:
        self._queue.when_settled(call)


class UntilWorkDone:
    """Wait until the bulk work that a lane has now is finished."""

    def __init__(self, work: BulkWork, lane: object) -> None:
        self._work = work
        self._lane = lane

    def is_over(self) -> bool:
        return not self._work.is_pending(self._lane)

    def call_when_over(self, call: Callable[[], None]) -> None:
        self._work.after(self._lane, call)


class Disk(Protocol):
    """Disk of a broker, to which its log is written."""

    def when_synced(self, call: Callable[[bool], None]) -> None:
        """Call a function when all that is in the log now is on disk, at once if it is.

        The argument is False if the disk has failed.
        """


class UntilSynced:
    """Wait until all that was published and settled so far is on disk."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.has_failed = False
        """True if the wait is over because the disk has failed."""

    def is_over(self) -> bool:
        return False

    def call_when_over(self, call: Callable[[], None]) -> None:
        def end(done: bool) -> None:
            self.has_failed = not done
            call()

        self._disk.when_synced(end)


def until_synced(disk: Disk) -> Operation[None]:
    """Wait until all that was published and settled so far is on disk.

    :raises AmqpError: 541 if the disk has failed.
    """
    wait = UntilSynced(disk)
    yield wait
    if wait.has_failed:
        raise AmqpError(Reply.INTERNAL_ERROR, "the disk has failed")


class StoredDefinitions(Protocol):
    """Definitions of a broker that are stored in its data folder."""

    @property
    def submitted(self) -> int:
        """Number of the last change that was submitted."""

    async def flush(self) -> None:
        """Return when the changes submitted so far are on disk."""


class DefinitionsOwner(Protocol):
    """Broker whose definitions change."""

    @property
    def definitions(self) -> StoredDefinitions | None:
        """Stored definitions; None if the broker has no data folder."""


@contextlib.asynccontextmanager
async def changes_stored(owner: DefinitionsOwner) -> AsyncIterator[None]:
    """Wait at the end of the block until the changes of definitions that it has made are on disk."""
    definitions = owner.definitions
    before = definitions.submitted if definitions is not None else 0
    yield
    if definitions is not None and definitions.submitted != before:
        await definitions.flush()


async def result_of(operation: Operation[T]) -> T:
    """Perform an operation, and return its result. If the caller is cancelled while it waits, it does not act any more.

    :raises AmqpError: if it is refused.
    """
    done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    context = contextvars.copy_context()

    def advance() -> None:
        # At once when a wait is over: what comes in between could begin new work on the queue.
        if done.done():
            return
        try:
            while (wait := next(operation)).is_over():
                pass
        except StopIteration as end:
            done.set_result(end.value)
        except Exception as error:
            done.set_exception(error)
        else:
            # A copy: the wait may be over at once, inside of this context.
            wait.call_when_over(lambda: context.copy().run(advance))

    advance()
    try:
        return await done
    finally:
        operation.close()
