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


class Press:
    """One process that renders, as fast as its test lets it."""

    def __init__(self, app: App, name: str, **settings: int) -> None:
        self.app = app
        self.work = WorkQueue(name, **settings)
        self.app.include(self.work)
        self.rendered: list[Render] = []
        self.at_once = self.most_at_once = 0
        self.open = asyncio.Event()

        @self.work.handle(Render, retry=Retry(2))
        async def render(page: Render, delivery: Delivery) -> None:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            assert delivery.queue == f"{name}.{page.urgency}"
            await self.open.wait()
            await self.before()
            self.rendered.append(page)
            self.at_once -= 1

    async def before(self) -> None:
        """Run before a page is done; tests override this."""

    async def put(self, urgency: int, count: int) -> None:
        await asyncio.gather(
            *(self.work.put(Render(page=n, urgency=urgency), priority=urgency) for n in range(count))
        )

    async def prefetched(self, count: int) -> None:
        def waiting() -> int:
            return sum(one.running + one.waiting for one in self.app.statistics().subscriptions.values())

        await eventually(lambda: waiting() == count, f"{count} are prefetched")


async def test_urgent_work_goes_first_and_the_rest_is_not_passed_over_for_ever(
    new_app: NewApp, name: str
) -> None:
    press = Press(new_app(), name, priorities=3, concurrency=1, bypass=5)
    async with press.app:

        async def next_is_there() -> None:
            """Work takes longer than the next message needs to come."""

            def there() -> bool:
                urgent = press.app.statistics().subscriptions[f"{name}.2"]
                return urgent.running + urgent.waiting >= min(2, 40 - urgent.acknowledged)

            await eventually(there, "the next urgent page is there")

        press.before = next_is_there  # type: ignore[method-assign]
        await press.put(0, 4)
        await press.put(1, 4)
        await press.put(2, 40)
        await press.prefetched(6)
        press.open.set()
        await eventually(lambda: len(press.rendered) == 48, "all is done")
    order = [page.urgency for page in press.rendered]
    # The first is whatever came first; what is urgent has the next turns, and the others every sixth or so.
    assert order.count(2) == 40
    last_low = max(index for index, urgency in enumerate(order) if urgency == 0)
    assert last_low < 48 - 8, "the low work was done among the urgent"
    for low in (0, 1):
        places = [index for index, urgency in enumerate(order) if urgency == low]
        assert all(later - earlier <= 7 for earlier, later in pairwise(places))
    for urgency in range(3):
        pages = [page.page for page in press.rendered if page.urgency == urgency]
        assert pages == sorted(pages)
    assert press.work.statistics.started == [4, 4, 40]
    assert press.work.statistics.promoted >= 6


async def test_no_more_at_a_time_than_asked_whatever_the_priorities(new_app: NewApp, name: str) -> None:
    press = Press(new_app(), name, priorities=2, concurrency=3)
    async with press.app:
        await press.put(0, 10)
        await press.put(1, 10)
        await eventually(lambda: press.at_once == 3, "three are worked on")
        press.open.set()
        await eventually(lambda: len(press.rendered) == 20, "all is done")
    assert press.most_at_once == 3


async def test_work_is_dealt_fairly_to_those_who_have_time(new_app: NewApp, name: str) -> None:
    """Fair dispatch: a process that is busy gets no more than it prefetches; the other does the rest."""
    slow, fast = (Press(new_app(), name, priorities=1, concurrency=1) for _ in range(2))
    async with slow.app, fast.app:
        fast.open.set()
        await slow.put(0, 30)
        await eventually(lambda: len(fast.rendered) == 28, "the fast one does all that the slow one has not")
        assert slow.rendered == []
        slow.open.set()
        await eventually(lambda: len(slow.rendered) == 2, "the slow one does what it had")


async def test_a_stop_in_the_middle_gives_back_what_has_not_begun(new_app: NewApp, name: str) -> None:
    first = Press(new_app(), name, priorities=2, concurrency=1)
    async with first.app:
        await first.put(0, 3)
        await first.put(1, 3)
        await first.prefetched(4)
        asyncio.get_running_loop().call_later(0.05, first.open.set)
    second = Press(new_app(), name, priorities=2, concurrency=1)
    second.open.set()
    async with second.app:
        await eventually(lambda: len(first.rendered + second.rendered) >= 6, "all is done")
    assert {(page.urgency, page.page) for page in first.rendered + second.rendered} == {
        (urgency, page) for urgency in range(2) for page in range(3)
    }


async def test_wrong_use_is_said(new_app: NewApp, name: str) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        WorkQueue(name, bypass=0)
    with pytest.raises(ConfigError, match=r"call app.include\(.*\) first"):
        WorkQueue(name).handle(Render)
    work = WorkQueue(name)
    new_app().include(work)
    with pytest.raises(ConfigError, match="must be from 0 to 2"):
        await work.put(Render(page=1, urgency=1), priority=3)
