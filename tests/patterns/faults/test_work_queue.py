"""The work queue in every fault."""

from __future__ import annotations

import asyncio

from tests.patterns.conftest import NewApp
from tests.patterns.faults.matrix import Fault, Matrix
from tests.support.broker_process import BrokerProcess
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.worker_host import WorkerChannel
from tests.support.worker_processes import Workers
from warren.patterns import WorkQueue
from warren.sdk import App, Message

MATRIX = Matrix("work queue", page="docs/patterns/work_queue.md")


class Render(Message):
    page: int


class Press:
    """One process that renders and writes down the pages."""

    def __init__(self, app: App, name: str) -> None:
        self.app = app
        self.work = WorkQueue(name, priorities=2, concurrency=1)
        self.rendered: list[int] = []
        app.include(self.work)

        @self.work.handle(Render)
        async def render(page: Render) -> None:
            await self.before()
            self.rendered.append(page.page)
            await self.after()

    async def before(self) -> None:
        """Run before the effect; tests override this."""

    async def after(self) -> None:
        """Run after the effect; tests override this."""

    async def put(self, page: int, priority: int = 0) -> None:
        await self.work.put(Render(page=page), priority=priority)

    async def has(self, *pages: int) -> None:
        await eventually(
            lambda: sorted(self.rendered) == sorted(pages), f"{pages} are rendered, not {self.rendered}"
        )


async def press(worker: WorkerChannel, url: str, queue: str, stop: str) -> None:
    its = Press(App(url), queue)

    async def stand() -> None:
        await worker.report_and_wait("here")

    if stop == "before":
        its.before = stand  # type: ignore[method-assign]
    else:
        its.after = stand  # type: ignore[method-assign]
    async with its.app:
        await its.put(1)
        await asyncio.Event().wait()


@MATRIX.shows(
    Fault.CRASH_BEFORE_EFFECT,
    "another process does the work, and the work that the dead process had prefetched",
)
async def test_a_process_dies_before_its_work(
    amqp_url: str, workers: Workers, new_app: NewApp, name: str
) -> None:
    doomed = await workers.start(press, url=amqp_url, queue=name, stop="before")
    await workers.wait_for("here")
    other = Press(new_app(), name)
    async with other.app:
        doomed.kill()
        await other.has(1)


@MATRIX.shows(
    Fault.CRASH_AFTER_EFFECT,
    "the work is done again (at least once); `Once` in the handler prevents that",
)
async def test_a_process_dies_after_its_work(
    amqp_url: str, workers: Workers, new_app: NewApp, name: str
) -> None:
    doomed = await workers.start(press, url=amqp_url, queue=name, stop="after")
    await workers.wait_for("here")
    other = Press(new_app(), name)
    async with other.app:
        doomed.kill()
        await other.has(1)


@MATRIX.shows(
    Fault.LOST_ACK,
    "the work is done again, and prefetched messages are not lost",
)
async def test_the_acknowledgement_is_lost(amqp_url: str, new_app: NewApp, name: str) -> None:
    async with Proxy(amqp_url) as proxy:
        here = Press(App(proxy.url), name)

        async def cut() -> None:
            if here.rendered == [1]:
                proxy.cut()

        here.after = cut  # type: ignore[method-assign]
        new_app().include(WorkQueue(name, priorities=2))  # Its names are tidied up.
        async with here.app:
            await here.put(1)
            await here.put(2, 1)
            await eventually(
                lambda: set(here.rendered) == {1, 2} and here.rendered.count(1) >= 2, "all is done"
            )


@MATRIX.shows(
    Fault.LOST_CONFIRM, "`put` publishes again with the same message id: the work may be done twice"
)
async def test_the_confirm_is_lost(amqp_url: str, new_app: NewApp, name: str) -> None:
    here = Press(new_app(), name)
    async with here.app, Proxy(amqp_url) as proxy:
        away = App(proxy.url)
        work = WorkQueue(name, priorities=2)
        away.include(work)
        async with away:
            proxy.to_client.hold()
            putting = asyncio.ensure_future(work.put(Render(page=1)))
            await eventually(lambda: here.rendered == [1], "it is done")
            proxy.cut()
            proxy.to_client.release()
            await putting
            await here.has(1, 1)


@MATRIX.shows(Fault.DUPLICATE, "the work is done twice")
@MATRIX.shows(
    Fault.REORDERING,
    "within a priority work begins in the order of arrival; redelivered messages come first",
)
async def test_twice_and_in_order(new_app: NewApp, name: str) -> None:
    here = Press(new_app(), name)
    async with here.app:
        for page in (1, 1, 2, 3, 4, 5):
            await here.put(page)
        await here.has(1, 1, 2, 3, 4, 5)
    assert here.rendered == [1, 1, 2, 3, 4, 5]


@MATRIX.shows(
    Fault.BROKER_RESTART,
    "published work is in the queue; work that was in progress is done again",
)
async def test_the_broker_is_killed(mortal_broker: BrokerProcess, name: str) -> None:
    here = Press(App(mortal_broker.url), name)

    async def kill() -> None:
        if here.rendered == [2]:
            await asyncio.to_thread(mortal_broker.kill)
            await asyncio.to_thread(mortal_broker.start)

    here.after = kill  # type: ignore[method-assign]
    async with here.app:
        await here.put(2, 1)
        await eventually(lambda: here.rendered.count(2) >= 2, "it is done again")
        await here.put(1)
        await eventually(lambda: 1 in here.rendered, "work goes on")


MATRIX.spared(
    Fault.STORE_DOWN,
    "no effect: there is no store",
)
MATRIX.spared(
    Fault.CLOCK_SKEW,
    "no effect: the bound on waiting is a count, not a time",
)
