"""The work queue in every fault."""

from __future__ import annotations

from tests.patterns.conftest import NewApp
from tests.patterns.faults.matrix import Fault, Matrix
from tests.patterns.faults.scenarios import (
    BROKER_KILLED_WHILE_HANDLING,
    BROKER_KILLED_WHILE_WAITING,
    CRASH_AFTER_EFFECT,
    CRASH_BEFORE_EFFECT,
    LOST_ACKNOWLEDGEMENT,
    LOST_CONFIRM,
    Process,
    copy_handled,
    handled_by_successor,
)
from tests.support.polling import eventually
from warren.patterns import WorkQueue
from warren.sdk import App, Message

MATRIX = Matrix("work queue", page="docs/patterns/work_queue.md")


class Render(Message):
    page: int


class Press(Process):
    """One process that renders pages."""

    def __init__(self, app: App, name: str, *, handles: bool = True) -> None:
        super().__init__(app, name)
        self.work = WorkQueue(name, priorities=2, concurrency=1)
        app.include(self.work)
        if handles:

            @self.work.handle(Render)
            async def render(page: Render) -> None:
                await self.handle(page.page)

    async def publish(self, number: int) -> None:
        """Publish a page; each has a higher priority than the one before."""
        await self.work.put(Render(page=number), priority=number - 1)


async def all_work_is_done(press: Press) -> None:
    await eventually(
        lambda: set(press.handled) == {1, 2} and press.handled.count(1) >= 2, "1 is done again, and 2"
    )


async def work_is_done_again_and_goes_on(press: Press) -> None:
    await eventually(lambda: press.handled.count(1) >= 2, "it is done again")
    await press.publish(2)
    await eventually(lambda: 2 in press.handled, "work goes on")


CRASH_BEFORE_EFFECT.of(
    MATRIX,
    Press,
    "another process does the work, and the work that the dead process had prefetched",
    handled_by_successor,
)
CRASH_AFTER_EFFECT.of(
    MATRIX,
    Press,
    "the work is done again (at least once); `Once` in the handler prevents that",
    handled_by_successor,
)
LOST_ACKNOWLEDGEMENT.of(
    MATRIX,
    Press,
    "the work is done again, and prefetched messages are not lost",
    all_work_is_done,
    messages=(1, 2),
)
LOST_CONFIRM.of(
    MATRIX, Press, "`put` publishes again with the same message id: the work may be done twice", copy_handled
)
BROKER_KILLED_WHILE_WAITING.of(MATRIX, Press, "published work is in the queue", handled_by_successor)
BROKER_KILLED_WHILE_HANDLING.of(
    MATRIX, Press, "work that was in progress is done again", work_is_done_again_and_goes_on
)


@MATRIX.shows(Fault.DUPLICATE, "the work is done twice")
@MATRIX.shows(
    Fault.REORDERING,
    "within a priority work begins in the order of arrival; redelivered messages come first",
)
async def test_duplicates_are_handled_in_the_order_of_arrival(new_app: NewApp, name: str) -> None:
    press = Press(new_app(), name)
    async with press.app:
        for page in (1, 1, 2, 3, 4, 5):
            await press.work.put(Render(page=page))
        await press.has_handled(1, 1, 2, 3, 4, 5)


MATRIX.spared(
    Fault.STORE_DOWN,
    "no effect: there is no store",
)
MATRIX.spared(
    Fault.CLOCK_SKEW,
    "no effect: the bound on waiting is a count, not a time",
)
