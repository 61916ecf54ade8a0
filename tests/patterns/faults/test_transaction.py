"""The transactional publish in every fault."""

from __future__ import annotations

import asyncio

import pytest

from tests.patterns.conftest import NewApp
from tests.patterns.faults.matrix import Fault, Matrix
from tests.support.async_client import take_one
from tests.support.broker_process import BrokerProcess
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.worker_host import WorkerChannel
from tests.support.worker_processes import Workers
from warren.patterns import ParkingLot
from warren.sdk import App, Queue, TransactionFailed, TransactionUnknown

MATRIX = Matrix("transaction", page="docs/patterns/transaction.md")


def books(app: App, name: str) -> App:
    """Declare the queue of transfer orders and the two queues that a transfer publishes to."""
    app.declare(Queue(f"{name}.debit"), Queue(f"{name}.credit"), Queue(name))
    return app


async def count(url: str, queue: str) -> int:
    async with ParkingLot(url, queue) as lot:
        return lot.size


async def both_hold(url: str, name: str, expected: int) -> None:
    async def there() -> bool:
        return [await count(url, f"{name}.debit"), await count(url, f"{name}.credit")] == [expected, expected]

    await eventually(there, f"{expected} are in both queues")


async def clerk(worker: WorkerChannel, url: str, queue: str, stop: str) -> None:
    """Book an order on both sides in a worker that stops before or after the commit."""
    async with App(url) as app:
        async with app.transaction() as tx:
            order = await tx.get(queue)
            assert order is not None
            await tx.publish(order.body, key=f"{queue}.debit")
            await tx.publish(order.body, key=f"{queue}.credit")
            if stop == "before":
                await worker.report_and_wait("booked")
        await worker.report_and_wait("booked")


@MATRIX.shows(
    Fault.CRASH_BEFORE_EFFECT,
    "nothing is published, and the consumed messages are in their queues again",
)
async def test_the_process_dies_before_the_commit(
    amqp_url: str, workers: Workers, new_app: NewApp, name: str
) -> None:
    async with books(new_app(), name) as app:
        await app.publish(b"10", key=name)
        doomed = await workers.start(clerk, url=amqp_url, queue=name, stop="before")
        await workers.wait_for("booked")
        doomed.kill()
        assert (await take_one(amqp_url, name)).body == b"10"
        await both_hold(amqp_url, name, 0)


@MATRIX.shows(
    Fault.CRASH_AFTER_EFFECT,
    "everything is published, and the consumed messages are removed",
)
async def test_the_process_dies_after_the_commit(
    amqp_url: str, workers: Workers, new_app: NewApp, name: str
) -> None:
    async with books(new_app(), name) as app:
        await app.publish(b"10", key=name)
        doomed = await workers.start(clerk, url=amqp_url, queue=name, stop="after")
        await workers.wait_for("booked")
        doomed.kill()
        await both_hold(amqp_url, name, 1)
        assert await count(amqp_url, name) == 0


MATRIX.spared(
    Fault.LOST_ACK,
    "acknowledgements are part of the commit: they take effect with it, or not at all",
)


@MATRIX.shows(
    Fault.LOST_CONFIRM,
    "the reply to the commit is lost and `TransactionUnknown` is raised: the transaction was committed or"
    " not; the SDK never repeats it by itself",
)
async def test_the_reply_to_the_commit_is_lost(amqp_url: str, new_app: NewApp, name: str) -> None:
    async with books(new_app(), name), Proxy(amqp_url) as proxy, App(proxy.url) as away:

        async def transfer() -> None:
            async with away.transaction() as tx:
                await tx.publish(b"10", key=f"{name}.debit")
                await tx.publish(b"10", key=f"{name}.credit")
                proxy.to_client.hold()

        transferring = asyncio.ensure_future(transfer())
        await both_hold(amqp_url, name, 1)
        proxy.cut()
        with pytest.raises(TransactionUnknown):
            await transferring
        proxy.to_client.release()
        await eventually(lambda: away.ready, "the App is back")
        await both_hold(amqp_url, name, 1)


@MATRIX.shows(
    Fault.DUPLICATE,
    "only your code repeats a transaction; if its messages have ids of their own, `Once` recognises the "
    "copies",
)
async def test_a_transaction_is_repeated(amqp_url: str, new_app: NewApp, name: str) -> None:
    async with books(new_app(), name) as app:
        for _ in range(2):
            async with app.transaction() as tx:
                await tx.publish(b"10", key=f"{name}.debit", message_id="transfer 7")
        ids = {(await take_one(amqp_url, f"{name}.debit")).message_id for _ in range(2)}
    assert ids == {"transfer 7"}


@MATRIX.shows(
    Fault.REORDERING,
    "the messages of a transaction arrive in their order, after those that were committed before",
)
async def test_messages_arrive_in_the_order_of_the_transaction(
    amqp_url: str, new_app: NewApp, name: str
) -> None:
    async with books(new_app(), name) as app:
        async with app.transaction() as tx:
            await tx.publish(b"2", key=f"{name}.debit")
            await app.publish(b"1", key=f"{name}.debit")
            await tx.publish(b"3", key=f"{name}.debit")
        bodies = [(await take_one(amqp_url, f"{name}.debit")).body for _ in range(3)]
    assert bodies == [b"1", b"2", b"3"]


@MATRIX.shows(
    Fault.BROKER_RESTART,
    "before the commit `TransactionFailed` is raised and nothing takes effect; a committed transaction is"
    " on the disk",
)
async def test_the_broker_is_killed(mortal_broker: BrokerProcess, name: str) -> None:
    async with books(App(mortal_broker.url), name) as app:
        async with app.transaction() as tx:
            await tx.publish(b"1", key=f"{name}.debit")
            await tx.publish(b"1", key=f"{name}.credit")

        async def transfer() -> None:
            async with app.transaction() as tx:
                await tx.publish(b"2", key=f"{name}.debit")
                await asyncio.to_thread(mortal_broker.kill)
                # Of the connection for publishing: the consumers' may be noticed before.
                await eventually(lambda: "publisher" in app.health().waiting, "the loss is noticed")
                await asyncio.to_thread(mortal_broker.start)

        with pytest.raises(TransactionFailed):
            await transfer()
        await both_hold(mortal_broker.url, name, 1)


MATRIX.spared(
    Fault.STORE_DOWN,
    "no effect: there is no store. For a database and a queue together use an [outbox](outbox.md)",
)
MATRIX.spared(
    Fault.CLOCK_SKEW,
    "no effect: the pattern reads no clock",
)
