"""The catch-all in every fault."""

from __future__ import annotations

import asyncio

from tests.patterns.conftest import NewApp
from tests.patterns.faults.matrix import Fault, Matrix
from tests.support.broker_process import BrokerProcess
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.worker_host import WorkerChannel
from tests.support.worker_processes import Workers
from warren.patterns import CatchAll, ParkingLot
from warren.sdk import App, Delivery

MATRIX = Matrix("catch-all", page="docs/patterns/immediate.md")


class Watch:
    """Receiver of alerts."""

    def __init__(self, app: App, name: str) -> None:
        self.app = app
        self.exchange = f"{name}.orders"
        self.told: list[str] = []
        self.orders = CatchAll(self.exchange, alert=self.tell)
        app.include(self.orders)

    async def tell(self, delivery: Delivery) -> None:
        await self.before()
        self.told.append(delivery.routing_key)
        await self.after()

    async def before(self) -> None:
        """Run before the effect; tests override this."""

    async def after(self) -> None:
        """Run after the effect; tests override this."""

    async def publish(self, key: str) -> None:
        await self.app.publish(b"", exchange=self.exchange, key=key)

    async def hears(self, *keys: str) -> None:
        await eventually(lambda: self.told == list(keys), f"{keys} are told, not {self.told}")

    async def kept(self, *keys: str) -> None:
        async def there() -> bool:
            async with ParkingLot(str(self.app.url), self.orders.queue.name) as lot:
                return [letter.key async for letter in lot] == list(keys)

        await eventually(there, f"{keys} are kept")


async def watch(worker: WorkerChannel, url: str, name: str, stop: str) -> None:
    its = Watch(App(url), name)

    async def stand() -> None:
        await worker.report_and_wait("here")

    if stop == "before":
        its.before = stand  # type: ignore[method-assign]
    else:
        its.after = stand  # type: ignore[method-assign]
    async with its.app:
        await its.publish("a")
        await asyncio.Event().wait()


@MATRIX.shows(
    Fault.CRASH_BEFORE_EFFECT,
    "another process reports the message; the message itself is kept all the time",
)
@MATRIX.shows(
    Fault.CRASH_AFTER_EFFECT,
    "the message is reported again",
)
@MATRIX.shows(
    Fault.LOST_ACK,
    "the message is reported again",
)
async def test_who_tells_dies(amqp_url: str, workers: Workers, new_app: NewApp, name: str) -> None:
    for stop in ("before", "after"):
        doomed = await workers.start(watch, url=amqp_url, name=f"{name}.{stop}", stop=stop)
        await workers.wait_for("here")
        other = Watch(new_app(), f"{name}.{stop}")
        async with other.app:
            await other.kept("a")
            doomed.kill()
            await other.hears("a")
            await other.kept("a")
        workers.reports.clear()


@MATRIX.shows(
    Fault.LOST_CONFIRM,
    "the message is published again with the same id; it is kept twice and reported twice",
)
async def test_the_confirm_is_lost(amqp_url: str, new_app: NewApp, name: str) -> None:
    here = Watch(new_app(), name)
    async with here.app, Proxy(amqp_url) as proxy, App(proxy.url) as away:
        proxy.to_client.hold()
        publishing = asyncio.ensure_future(away.publish(b"", exchange=here.exchange, key="a"))
        await here.hears("a")
        proxy.cut()
        proxy.to_client.release()
        await publishing
        await here.hears("a", "a")
        await here.kept("a", "a")


@MATRIX.shows(
    Fault.DUPLICATE,
    "each copy is kept and reported",
)
@MATRIX.shows(
    Fault.REORDERING,
    "messages are kept in the order in which they were published",
)
async def test_each_is_kept_in_order(new_app: NewApp, name: str) -> None:
    here = Watch(new_app(), name)
    async with here.app:
        for key in ("a", "b", "b", "c"):
            await here.publish(key)
        await here.kept("a", "b", "b", "c")
        await eventually(lambda: sorted(here.told) == ["a", "b", "b", "c"], "all are told")


@MATRIX.shows(
    Fault.BROKER_RESTART,
    "kept messages are on the disk; a report may be repeated, or in rare cases lost",
)
async def test_the_broker_is_killed(mortal_broker: BrokerProcess, name: str) -> None:
    here = Watch(App(mortal_broker.url), name)
    async with here.app:
        await here.publish("a")
        await asyncio.to_thread(mortal_broker.kill)
        await asyncio.to_thread(mortal_broker.start)
        await eventually(lambda: here.app.ready, "the App is back")
        await here.publish("b")
        await here.kept("a", "b")
        await eventually(lambda: "b" in here.told, "and it tells")


MATRIX.spared(
    Fault.STORE_DOWN,
    "there is no store: messages are kept in a queue",
)
MATRIX.spared(
    Fault.CLOCK_SKEW,
    "no effect: the pattern reads no clock",
)
