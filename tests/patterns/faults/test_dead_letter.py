"""Replaying dead letters in every fault."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.patterns.conftest import NewApp
from tests.patterns.faults.matrix import Fault, Matrix
from tests.patterns.faults.scenarios import lose_confirm, lose_connection
from tests.support.broker_process import BrokerProcess
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.worker_host import WorkerChannel
from tests.support.worker_processes import Workers
from warren.patterns import ParkedMessage, ParkingLot, replay
from warren.sdk import App, Queue, TransportUnavailable, WarrenError

MATRIX = Matrix("dead letters", page="docs/patterns/dead_letters.md")

COUNT = 5
IDS = [f"m{number}" for number in range(COUNT)]


def parking(app: App, name: str) -> App:
    """Declare a queue and its parking lot."""
    app.declare(Queue(name), Queue(f"{name}.dead", dead_letter_exchange=None))
    return app


async def park(app: App, name: str) -> None:
    for message_id in IDS:
        headers = {"warren-exchange": "", "warren-key": name}
        await app.publish(message_id, key=f"{name}.dead", message_id=message_id, headers=headers)


async def ids(url: str, queue: str) -> list[str]:
    async with ParkingLot(url, queue) as lot:
        return [message.message_id async for message in lot]


async def replayed(url: str, name: str) -> None:
    async with ParkingLot(url, f"{name}.dead") as lot, App(url) as app:
        assert (await replay(lot, app)).failed == []


async def replayer(worker: WorkerChannel, url: str, queue: str, stop: str) -> None:
    """Replay in a worker that stops before or after the third publish."""
    async with ParkingLot(url, f"{queue}.dead") as lot, App(url) as app:

        def stand(what: str) -> None:
            worker.report(what)
            time.sleep(60)

        def progress(read: int) -> None:
            if stop == "before" and read == 3:
                stand("about to publish")

        def watched_remove(message: ParkedMessage) -> None:
            if stop == "after" and message.message_id == "m2":
                stand("published")
            remove(message)

        remove = lot.remove
        lot.remove = watched_remove  # type: ignore[method-assign]
        await replay(lot, app, rate=100, progress=progress)


@MATRIX.shows(
    Fault.CRASH_BEFORE_EFFECT,
    "letters that were not published yet are in the parking lot; the next replay publishes them",
)
@MATRIX.shows(
    Fault.CRASH_AFTER_EFFECT,
    "a message that was published but not removed is in both places, with the same message id: after the "
    "next replay it arrives twice, and `Once` recognises it",
)
@pytest.mark.parametrize(("stop", "word"), [("before", "about to publish"), ("after", "published")])
async def test_a_replay_is_killed(
    amqp_url: str, workers: Workers, new_app: NewApp, name: str, stop: str, word: str
) -> None:
    async with parking(new_app(), name) as app:
        await park(app, name)
        doomed = await workers.start(replayer, url=amqp_url, queue=name, stop=stop)
        await workers.wait_for(word)
        doomed.kill()

        async def requeued() -> bool:
            left, there = await ids(amqp_url, f"{name}.dead"), await ids(amqp_url, name)
            return set(left + there) == set(IDS) and (stop == "before" or {"m2"} <= set(left) & set(there))

        await eventually(requeued, "each is in one of the two queues")
        await replayed(amqp_url, name)
        assert await ids(amqp_url, f"{name}.dead") == []
        assert set(await ids(amqp_url, name)) == set(IDS)


@MATRIX.shows(Fault.LOST_ACK, "as after a crash: the letters whose removal was lost are in both places")
async def test_the_removal_is_lost(amqp_url: str, new_app: NewApp, name: str) -> None:
    async with parking(new_app(), name) as app, Proxy(amqp_url) as proxy:
        await park(app, name)

        async def remove_two() -> None:
            async with ParkingLot(proxy.url, f"{name}.dead") as lot:
                letters = [message async for message in lot]
                proxy.to_server.hold()
                for message in letters[:2]:
                    await app.forward(message.delivery, key=name)
                    lot.remove(message)
                await asyncio.sleep(0)
                lose_connection(proxy)

        with pytest.raises(TransportUnavailable, match="before the broker had acknowledged the removals"):
            await remove_two()

        async def requeued() -> bool:
            return await ids(amqp_url, f"{name}.dead") == IDS

        await eventually(requeued, "all are in the parking lot")
        assert await ids(amqp_url, name) == IDS[:2]


@MATRIX.shows(
    Fault.LOST_CONFIRM,
    "the message is published again with the same id, marked `warren-republished`, and the letter is "
    "removed when that is confirmed",
)
async def test_the_confirm_is_lost(amqp_url: str, new_app: NewApp, name: str) -> None:
    async with parking(new_app(), name) as app, Proxy(amqp_url) as proxy, new_app(proxy.url) as publisher:
        await park(app, name)
        async with ParkingLot(amqp_url, f"{name}.dead") as lot:

            async def arrived() -> bool:
                return await ids(amqp_url, name) == ["m0"]

            result = await lose_confirm(proxy, replay(lot, publisher, limit=1), arrived)
            assert result.done == 1
        assert await ids(amqp_url, name) == ["m0", "m0"]
        assert await ids(amqp_url, f"{name}.dead") == IDS[1:]


@MATRIX.shows(
    Fault.DUPLICATE,
    "a message that is in the parking lot twice is replayed twice, with the same message id",
)
async def test_a_dead_letter_is_there_twice(amqp_url: str, new_app: NewApp, name: str) -> None:
    async with parking(new_app(), name) as app:
        await park(app, name)
        await park(app, name)
        await replayed(amqp_url, name)
        assert sorted(await ids(amqp_url, name)) == sorted(IDS * 2)


@MATRIX.shows(
    Fault.REORDERING,
    "letters are replayed in the order of their deaths, which is not that of their publishing",
)
async def test_a_replay_keeps_the_order_of_the_parking_lot(amqp_url: str, new_app: NewApp, name: str) -> None:
    async with parking(new_app(), name) as app:
        await park(app, name)
        await replayed(amqp_url, name)
        assert await ids(amqp_url, name) == IDS


@MATRIX.shows(
    Fault.BROKER_RESTART,
    "the replay ends with an error; letters that were not removed are in the parking lot, and published "
    "messages are in their queues",
)
async def test_the_broker_is_killed(mortal_broker: BrokerProcess, name: str) -> None:
    async with parking(App(mortal_broker.url), name) as app:
        await park(app, name)

        async def replay_until_killed() -> None:
            async with ParkingLot(mortal_broker.url, f"{name}.dead") as lot:
                async for message in lot:
                    if message.delivery.message_id == "m0":
                        await app.forward(message.delivery, key=name)
                        await asyncio.to_thread(mortal_broker.kill)
                    # Whether the loss is known by now or not, at the end of the block it is.
                    lot.remove(message)

        with pytest.raises(WarrenError, match="connection was lost"):
            await replay_until_killed()
        await asyncio.to_thread(mortal_broker.start)
        await eventually(lambda: app.ready, "the App is back")
        assert await ids(mortal_broker.url, f"{name}.dead") == IDS
        assert await ids(mortal_broker.url, name) == ["m0"]


MATRIX.spared(
    Fault.STORE_DOWN,
    "no effect: there is no store; the parking lot is a queue",
)
MATRIX.spared(
    Fault.CLOCK_SKEW,
    "only the filters `--older-than` and `--newer-than` depend on clocks",
)
