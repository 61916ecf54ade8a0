"""The work queue: urgent work first, and no work starves."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from tests.patterns.conftest import NewApp
from tests.support.polling import eventually
from warren.patterns import WorkQueue
from warren.sdk import App, ConfigError, Delivery, Message, Retry


class Render(Message):
    page: int
    urgency: int


class Renderer:
    """One process that renders pages once `may_finish` is set."""

    def __init__(self, app: App, name: str, **settings: int) -> None:
        self.app = app
        self.work = WorkQueue(name, **settings)
        self.app.include(self.work)
        self.rendered: list[Render] = []
        self.at_once = self.most_at_once = 0
        self.may_finish = asyncio.Event()

        @self.work.handle(Render, retry=Retry(2))
        async def render(page: Render, delivery: Delivery) -> None:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            assert delivery.queue == f"{name}.{page.urgency}"
            await self.may_finish.wait()
            await self.before()
            self.rendered.append(page)
            self.at_once -= 1

    async def before(self) -> None:
        """Run before a page is done; tests override this."""

    async def put(self, urgency: int, count: int) -> None:
        await asyncio.gather(
            *(self.work.put(Render(page=n, urgency=urgency), priority=urgency) for n in range(count))
        )

    async def wait_for_prefetched(self, count: int) -> None:
        def waiting() -> int:
            return sum(one.running + one.waiting for one in self.app.statistics().subscriptions.values())

        await eventually(lambda: waiting() == count, f"{count} are prefetched")


async def test_urgent_messages_are_handled_first_and_the_others_do_not_starve(
    new_app: NewApp, name: str
) -> None:
    renderer = Renderer(new_app(), name, priorities=3, concurrency=1, bypass=5)
    async with renderer.app:

        async def wait_for_next_urgent_page() -> None:
            """Wait until the next urgent pages are prefetched, so that no page is handled for lack of an urgent one."""

            def is_prefetched() -> bool:
                urgent = renderer.app.statistics().subscriptions[f"{name}.2"]
                return urgent.running + urgent.waiting >= min(2, 40 - urgent.acknowledged)

            await eventually(is_prefetched, "the next urgent page is there")

        renderer.before = wait_for_next_urgent_page  # type: ignore[method-assign]
        await renderer.put(0, 4)
        await renderer.put(1, 4)
        await renderer.put(2, 40)
        await renderer.wait_for_prefetched(6)
        renderer.may_finish.set()
        await eventually(lambda: len(renderer.rendered) == 48, "all is done")
    order = [page.urgency for page in renderer.rendered]
    # The first page is the first that arrived. Then urgent pages come first, and about every sixth is another one.
    assert order.count(2) == 40
    last_low = max(index for index, urgency in enumerate(order) if urgency == 0)
    assert last_low < 48 - 8, "the low work was done among the urgent"
    for low in (0, 1):
        places = [index for index, urgency in enumerate(order) if urgency == low]
        assert all(later - earlier <= 7 for earlier, later in pairwise(places))
    for urgency in range(3):
        pages = [page.page for page in renderer.rendered if page.urgency == urgency]
        assert pages == sorted(pages)
    assert renderer.work.statistics.started == [4, 4, 40]
    assert renderer.work.statistics.promoted >= 6


async def test_the_concurrency_limit_applies_to_all_priorities_together(new_app: NewApp, name: str) -> None:
    renderer = Renderer(new_app(), name, priorities=2, concurrency=3)
    async with renderer.app:
        await renderer.put(0, 10)
        await renderer.put(1, 10)
        await eventually(lambda: renderer.at_once == 3, "three are worked on")
        renderer.may_finish.set()
        await eventually(lambda: len(renderer.rendered) == 20, "all is done")
    assert renderer.most_at_once == 3


async def test_a_busy_process_gets_only_its_prefetch_and_an_idle_one_the_rest(
    new_app: NewApp, name: str
) -> None:
    """Fair dispatch: a process that is busy gets no more than it prefetches; the other does the rest."""
    slow, fast = (Renderer(new_app(), name, priorities=1, concurrency=1) for _ in range(2))
    async with slow.app, fast.app:
        fast.may_finish.set()
        await slow.put(0, 30)
        await eventually(lambda: len(fast.rendered) == 28, "the fast one does all that the slow one has not")
        assert slow.rendered == []
        slow.may_finish.set()
        await eventually(lambda: len(slow.rendered) == 2, "the slow one does what it had")


async def test_stopping_requeues_messages_whose_handlers_have_not_started(new_app: NewApp, name: str) -> None:
    first = Renderer(new_app(), name, priorities=2, concurrency=1)
    async with first.app:
        await first.put(0, 3)
        await first.put(1, 3)
        await first.wait_for_prefetched(4)
        asyncio.get_running_loop().call_later(0.05, first.may_finish.set)
    second = Renderer(new_app(), name, priorities=2, concurrency=1)
    second.may_finish.set()
    async with second.app:
        await eventually(lambda: len(first.rendered + second.rendered) >= 6, "all is done")
    assert {(page.urgency, page.page) for page in first.rendered + second.rendered} == {
        (urgency, page) for urgency in range(2) for page in range(3)
    }


async def test_invalid_arguments_raise_config_errors(new_app: NewApp, name: str) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        WorkQueue(name, bypass=0)
    with pytest.raises(ConfigError, match=r"WorkQueue .* belongs to no App: call app.include\(\.\.\.\)"):
        WorkQueue(name).handle(Render)
    work = WorkQueue(name)
    new_app().include(work)
    with pytest.raises(ConfigError, match="must be from 0 to 2"):
        await work.put(Render(page=1, urgency=1), priority=3)
