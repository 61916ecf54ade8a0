"""Dead letters: browsed without a change, replayed to their original queue, and discarded."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest

from tests.patterns.conftest import NewApp
from tests.support.async_client import async_client, take_one
from tests.support.broker_behaviour import Behaviour
from tests.support.frames import CHANNEL_CLOSE_OK
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.proxy_queue_counts import CountedDeliveries, EmptyCounts
from warren.patterns import DeadLetterSelection, ParkedMessage, ParkingLot, SelectionResult, discard, replay
from warren.patterns.dead_letters import REPLAYED, parking_lot
from warren.patterns.dead_letters.parking_lot import count_messages
from warren.sdk import (
    App,
    Command,
    DeadLetter,
    Delivery,
    Event,
    Queue,
    Requeue,
    Retry,
    TopologyMismatch,
    TransportUnavailable,
)


class OrderConsumer:
    """App that handles orders, or dead-letters them while `failing` is set."""

    def __init__(self, app: App, name: str) -> None:
        class OrderPlaced(Event, exchange=f"{name}.orders", key="order.placed", audience=[name]):
            number: int

        self.order_placed = OrderPlaced
        self.app = app
        self.queue = name
        self.failing = True
        self.handled: list[tuple[int, Delivery]] = []

        @app.handle(OrderPlaced, queue=name, concurrency=1, retry=Retry(1))
        async def handle(order: OrderPlaced, delivery: Delivery) -> None:
            if self.failing and order.number % 2:
                raise ValueError(f"cannot handle {order.number}")
            if self.failing:
                raise DeadLetter("closed")
            self.handled.append((order.number, delivery))

    async def dead_letter_orders(self, count: int) -> None:
        await self.app.publish_many([self.order_placed(number=n) for n in range(count)])
        await self.wait_until(
            lambda: self.app.statistics().handlers[self.queue].dead_lettered == count, "all are dead-lettered"
        )

    async def wait_until(self, condition: Any, description: str) -> None:
        await eventually(condition, description)

    def lot(self) -> ParkingLot:
        return ParkingLot(str(self.app.url), f"{self.queue}.dead")

    async def parked_messages(self, expected: int) -> list[ParkedMessage]:
        await count(str(self.app.url), f"{self.queue}.dead", expected)
        async with self.lot() as lot:
            return [letter async for letter in lot]

    async def replay(self, which: DeadLetterSelection | None = None, **settings: Any) -> SelectionResult:
        async with self.lot() as lot:
            return await replay(lot, self.app, which, **settings)


async def count(url: str, queue: str, expected: int) -> bool:
    """Wait until `expected` messages are ready: a broker requeues the messages of a channel only after it has closed it."""

    async def ready() -> bool:
        async with ParkingLot(url, queue) as lot:
            return lot.size == expected

    await eventually(ready, f"{expected} are in {queue}")
    return True


async def test_browsing_shows_reason_and_error_and_leaves_dead_letters_in_their_queue(
    new_app: NewApp, name: str
) -> None:
    consumer = OrderConsumer(new_app(), name)
    async with consumer.app:
        before = datetime.now(UTC) - timedelta(seconds=1)
        await consumer.dead_letter_orders(4)
        first = await consumer.parked_messages(4)
        again = await consumer.parked_messages(4)
    assert [letter.delivery.body for letter in again] == [b'{"number":%d}' % n for n in range(4)]
    assert [letter.as_dict() for letter in first] == [letter.as_dict() for letter in again]
    failed, rejected = first[1], first[2]
    assert (failed.reason, failed.error, failed.exception) == (
        "failed",
        "ValueError: cannot handle 1",
        "ValueError",
    )
    assert (rejected.reason, rejected.error, rejected.exception) == (
        "rejected",
        "DeadLetter: closed",
        "DeadLetter",
    )
    assert (failed.queue, failed.exchange, failed.key) == (name, f"{name}.orders", "order.placed")
    assert failed.deaths == 1
    assert failed.last_death is not None
    assert before <= failed.last_death <= datetime.now(UTC) + timedelta(seconds=1)
    assert failed.first_death == failed.last_death


async def test_a_replayed_message_keeps_its_id_and_address_and_counts_its_replays(
    new_app: NewApp, name: str
) -> None:
    consumer = OrderConsumer(new_app(), name)
    async with consumer.app:
        await consumer.dead_letter_orders(4)
        ids = [letter.message_id for letter in await consumer.parked_messages(4)]
        # The first replay fails: the messages are dead-lettered again and count it.
        assert (await consumer.replay()).done == 4
        await consumer.wait_until(
            lambda: consumer.app.statistics().handlers[name].dead_lettered == 8,
            "they are dead-lettered again",
        )
        letters = await consumer.parked_messages(4)
        assert [letter.deaths for letter in letters] == [2] * 4
        assert all(letter.first_death < letter.last_death for letter in letters if letter.last_death)  # type: ignore[operator]
        consumer.failing = False
        await count(str(consumer.app.url), f"{name}.dead", 4)
        settled = await consumer.replay()
        await consumer.wait_until(lambda: len(consumer.handled) == 4, "all are handled")
        assert await consumer.parked_messages(0) == []
    assert (settled.read, settled.matched, settled.done, settled.failed) == (4, 4, 4, [])
    assert sorted(number for number, _ in consumer.handled) == [0, 1, 2, 3]
    for number, delivery in consumer.handled:
        assert delivery.message_id == ids[number]
        # It goes to the queue in which it died; its headers keep the address of the first publish.
        assert (delivery.exchange, delivery.routing_key) == ("", name)
        assert (delivery.headers["warren-exchange"], delivery.headers["warren-key"]) == (
            f"{name}.orders",
            "order.placed",
        )
        assert delivery.headers[REPLAYED] == 2
        assert not {"warren-dead-reason", "warren-dead-error", "warren-dead-queue"} & set(delivery.headers)


@pytest.mark.parametrize("died", ["by the SDK", "by the broker"])
@pytest.mark.parametrize("to_exchange", [False, True])
async def test_a_copy_for_a_key_in_cc_is_replayed_to_the_queue_where_it_died(
    new_app: NewApp, amqp_url: str, name: str, died: str, to_exchange: bool
) -> None:
    class Placed(Event, exchange=f"{name}.orders", key="placed", audience=[f"{name}.billing"]):
        pass

    billing, audit = f"{name}.billing", f"{name}.audit"
    app = new_app()

    @app.handle(Placed, queue=audit, keys=["audit"], concurrency=1, retry=Retry(1))
    async def handle(placed: Placed) -> None:
        raise DeadLetter("closed")

    async with async_client(amqp_url) as client:
        async with app:
            if died == "by the SDK":
                await app.publish(Placed(), headers={"CC": ["audit"]})
                await client.holds(f"{audit}.dead", 1)
        if died == "by the broker":
            async with new_app() as publisher:
                await publisher.publish(Placed(), headers={"CC": ["audit"]})
            await client.holds(audit, 1)
            copy = await (await client.channel.get_queue(audit)).get()
            await copy.reject(requeue=False)
            await client.holds(f"{audit}.dead", 1)
        assert await client.drain(billing) == [b"{}"]
        async with new_app() as operator, ParkingLot(amqp_url, f"{audit}.dead") as lot:
            result = await replay(lot, operator, to_exchange=to_exchange)
        assert (result.done, result.failed) == (1, [])
        # To the exchange it goes with the key of its publish, without those in CC.
        expected = {billing: 1, audit: 0} if to_exchange else {billing: 0, audit: 1}
        assert {queue: await client.count(queue) for queue in expected} == expected


async def test_replay_and_discard_obey_selection_limit_and_dry_run(new_app: NewApp, name: str) -> None:
    consumer = OrderConsumer(new_app(), name)
    async with consumer.app:
        await consumer.dead_letter_orders(10)
        consumer.failing = False
        await count(str(consumer.app.url), f"{name}.dead", 10)
        dry = await consumer.replay(DeadLetterSelection(exception="Value*"), dry_run=True)
        assert (dry.read, dry.matched, dry.done) == (10, 5, 0)
        await count(str(consumer.app.url), f"{name}.dead", 10)
        assert (await consumer.replay(DeadLetterSelection(exception="Value*"), limit=2)).done == 2
        await consumer.wait_until(lambda: len(consumer.handled) == 2, "two are handled")
        await count(str(consumer.app.url), f"{name}.dead", 8)
        third = (await consumer.parked_messages(8))[3]
        await count(str(consumer.app.url), f"{name}.dead", 8)
        async with consumer.lot() as lot:
            gone = await discard(lot, DeadLetterSelection(message_id=third.message_id))
        assert (gone.matched, gone.done) == (1, 1)
        await count(str(consumer.app.url), f"{name}.dead", 7)
        async with consumer.lot() as lot:
            assert (await discard(lot, DeadLetterSelection(reason="rejected"), dry_run=True)).matched == 5
        # In their old order, and none of the others was touched.
        left = [letter.delivery.body for letter in await consumer.parked_messages(7)]
    assert sorted(number for number, _ in consumer.handled) == [1, 3]
    assert len(left) == 7
    assert left == sorted(left)


@pytest.mark.parametrize(
    ("which", "matches"),
    [
        (DeadLetterSelection(), True),
        (
            DeadLetterSelection(
                queue="bill*", reason="failed", exception="OSError", key="order.*", message_id="m1"
            ),
            True,
        ),
        (DeadLetterSelection(queue="order"), False),
        (DeadLetterSelection(reason="fail"), False),
        (DeadLetterSelection(exception="ValueError"), False),
        (DeadLetterSelection(key="*.paid"), False),
        (DeadLetterSelection(key="order?placed"), False),
        (DeadLetterSelection(key="order.place[a-z]"), False),
        (DeadLetterSelection(message_id="m"), False),
        (DeadLetterSelection(older_than=timedelta(minutes=9)), True),
        (DeadLetterSelection(older_than=timedelta(minutes=11)), False),
        (DeadLetterSelection(newer_than=timedelta(minutes=11)), True),
        (DeadLetterSelection(newer_than=timedelta(minutes=9)), False),
    ],
)
def test_selection_criteria(which: DeadLetterSelection, matches: bool) -> None:
    now = datetime(2026, 11, 21, 12, tzinfo=UTC)
    headers = {
        "warren-dead-reason": "failed",
        "warren-dead-error": "OSError: no disk",
        "warren-dead-queue": "billing",
        "warren-dead-time": int((now - timedelta(minutes=10)).timestamp() * 1000),
        "warren-exchange": "orders",
        "warren-key": "order.placed",
    }
    delivery = Delivery(b"", "", "", "billing.dead", False, headers, {"message_id": "m1"})
    assert which(ParkedMessage.of(delivery, 1), now) is matches


def test_malformed_headers_of_other_clients_are_ignored() -> None:
    for headers in (
        {"x-death": "no list"},
        {"x-death": [7]},
        {"x-death": [{"routing-keys": 7, "time": "yesterday", "count": None}]},
        {
            "warren-dead-reason": 7,
            "warren-dead-time": 2**62,
            "warren-deaths": "many",
            "warren-dead-error": b"\xff",
        },
    ):
        letter = ParkedMessage.of(Delivery(b"", "e", "k", "q", False, headers, {}), 1)
        assert (letter.exchange, letter.key, letter.last_death) == ("e", "k", None)
        assert not DeadLetterSelection(older_than=timedelta(0))(letter, datetime.now(UTC))


async def test_a_message_that_the_broker_dead_lettered_has_its_original_address(
    new_app: NewApp, amqp_url: str, name: str
) -> None:
    app = new_app()
    app.declare(Queue(name, message_ttl=timedelta(milliseconds=1)))
    async with app:
        await app.publish(b"late", key=name)
        letters: list[ParkedMessage] = []

        async def expired() -> bool:
            async with ParkingLot(amqp_url, f"{name}.dead") as lot:
                letters[:] = [letter async for letter in lot]
            return bool(letters)

        await eventually(expired, "it expires")
        (letter,) = letters
        assert (letter.reason, letter.queue, letter.exchange, letter.key) == ("expired", name, "", name)
        assert letter.deaths == 1
        assert letter.last_death is not None
        assert abs(letter.last_death - datetime.now(UTC)) < timedelta(minutes=1)


async def test_a_poison_message_is_dead_lettered_at_the_delivery_limit(
    new_app: NewApp, amqp_url: str, name: str
) -> None:
    class Poison(Command, queue=Queue(name, delivery_limit=3)):
        pass

    app = new_app()
    tried: list[bool] = []

    @app.handle(Poison)
    async def handle(poison: Poison, delivery: Delivery) -> None:
        tried.append(delivery.redelivered)
        raise Requeue

    async with app:
        await app.publish(Poison(), message_id="m1")
        await count(amqp_url, f"{name}.dead", 1)
        async with ParkingLot(amqp_url, f"{name}.dead") as lot:
            (letter,) = [letter async for letter in lot]
    assert (letter.message_id, letter.reason, letter.queue, letter.key) == (
        "m1",
        "delivery_limit",
        name,
        name,
    )
    assert tried == [False, True, True, True]


async def test_a_dead_letter_that_cannot_be_replayed_stays_in_its_queue(
    new_app: NewApp, amqp_url: str, name: str
) -> None:
    app = new_app()
    app.declare(Queue(f"{name}.dead", dead_letter_exchange=None))
    headers = {"warren-exchange": "", "warren-key": f"{name}.gone"}
    async with app:
        await app.publish(b"1", key=f"{name}.dead", headers=headers, message_id="m1")
        async with ParkingLot(amqp_url, f"{name}.dead") as lot:
            settled = await replay(lot, app)
        ((letter, error),) = settled.failed
        assert (settled.done, letter.message_id) == (0, "m1")
        assert "no queue takes" in str(error)
        await take_one(amqp_url, f"{name}.dead")


async def test_a_dead_letter_that_arrives_during_a_request_for_the_queue_size_is_read(
    new_app: NewApp, amqp_url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deliver the message before the reply with a queue size that no longer counts it."""
    monkeypatch.setattr(parking_lot, "IDLE_SECONDS", 0.05)
    app = new_app()
    app.declare(Queue(f"{name}.dead", dead_letter_exchange=None))
    async with app, Proxy(amqp_url) as proxy:
        await app.publish(b"1", key=f"{name}.dead")
        async with ParkingLot(proxy.url, f"{name}.dead") as lot:
            lot.size = 2  # the second comes later, as if it had been in transit
            letters = aiter(lot)
            assert (await anext(letters)).delivery.body == b"1"
            proxy.to_client.hold()
            await app.publish(b"2", key=f"{name}.dead")
            before = proxy.to_server.passed
            following = asyncio.ensure_future(anext(letters))
            await eventually(lambda: proxy.to_server.passed > before, "the broker is asked")
            proxy.to_client.release()
            assert (await following).delivery.body == b"2"


async def test_a_parking_lot_of_several_pages_is_read_and_discarded(
    new_app: NewApp, amqp_url: str, name: str
) -> None:
    app = new_app()
    app.declare(Queue(name), Queue(f"{name}.dead", dead_letter_exchange=None))
    async with app:
        await app.publish_many([b"%d" % n for n in range(1100)], key=f"{name}.dead")
        async with ParkingLot(amqp_url, f"{name}.dead") as lot:
            read = [int(letter.delivery.body) async for letter in lot]
        assert read == list(range(1100))
        assert await count(amqp_url, f"{name}.dead", 1100)
        async with ParkingLot(amqp_url, f"{name}.dead") as lot:
            settled = await discard(lot, limit=1000)
        assert settled.done == 1000
        assert await count(amqp_url, f"{name}.dead", 100)


async def test_removing_a_message_late_does_not_change_the_following_pages(
    new_app: NewApp, amqp_url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay removes a message when the broker has confirmed its copy; by then, later messages have been read."""
    monkeypatch.setattr(parking_lot, "PAGE", 5)
    app = new_app()
    app.declare(Queue(name), Queue(f"{name}.dead", dead_letter_exchange=None))
    async with app:
        await app.publish_many([b"%d" % n for n in range(16)], key=f"{name}.dead")
        read: list[ParkedMessage] = []
        async with asyncio.timeout(120), ParkingLot(amqp_url, f"{name}.dead") as lot:
            async for letter in lot:
                read.append(letter)
                if len(read) == 6:
                    lot.remove(read[0])
        assert sorted(int(letter.delivery.body) for letter in read) == list(range(16))
        assert await count(amqp_url, f"{name}.dead", 15)


async def test_browsed_messages_are_back_in_their_queue_for_the_next_reader(
    new_app: NewApp, amqp_url: str, name: str
) -> None:
    """The messages are back in the queue as soon as the block has ended."""
    app = new_app()
    app.declare(Queue(f"{name}.dead", dead_letter_exchange=None))
    async with app:
        await app.publish_many([b"%d" % n for n in range(300)], key=f"{name}.dead")
        sizes = []
        for _ in range(15):
            async with ParkingLot(amqp_url, f"{name}.dead") as lot:
                sizes.append(lot.size)
                await anext(aiter(lot))
    assert sizes == [300] * 15


@asynccontextmanager
async def one_letter_behind_proxy(app: App, url: str, name: str) -> AsyncIterator[tuple[Proxy, EmptyCounts]]:
    """Put the message "1" into the dead letter queue of `name`; provide a proxy to the broker, and its plan, which
    rewrites nothing yet."""
    app.declare(Queue(f"{name}.dead", dead_letter_exchange=None))
    async with app, Proxy(url) as proxy:
        proxy.to_client.rewrite = counts = EmptyCounts(0)
        await app.publish(b"1", key=f"{name}.dead")
        yield proxy, counts


@pytest.mark.sampled(4)
@pytest.mark.parametrize("single_active_consumer", [False, True])
@pytest.mark.parametrize("type", ["quorum", "classic"])
async def test_a_queue_whose_leader_answers_late_is_not_taken_for_empty(
    new_app: NewApp,
    amqp_url: str,
    name: str,
    server: Behaviour,
    type: Literal["quorum", "classic"],
    single_active_consumer: bool,
) -> None:
    """Each reading begins with a basic.get, except where a single active consumer forbids it."""
    moved = int(server.requeues_gets_last and type == "quorum" and not single_active_consumer)
    dead = Queue(name, type=type, dead_letter_exchange=None, single_active_consumer=single_active_consumer)
    app = new_app()
    app.declare(dead)
    bodies = deque(b"%d" % number for number in range(12))
    async with app, Proxy(amqp_url) as proxy:
        await app.publish_many(bodies, key=name)
        for _ in range(3):
            proxy.to_client.rewrite = EmptyCounts(10)
            assert await count_messages(proxy.url, [name]) == {name: 12}
            bodies.rotate(-moved)
            proxy.to_client.rewrite = EmptyCounts(10)
            async with ParkingLot(proxy.url, name) as lot:
                assert lot.size == 12
                assert [letter.delivery.body async for letter in lot] == list(bodies)
            bodies.rotate(-moved)
        proxy.to_client.rewrite = EmptyCounts(10)
        async with ParkingLot(proxy.url, name) as lot:
            assert (await discard(lot)).done == 12
        proxy.to_client.rewrite = EmptyCounts(10)
        assert await count_messages(proxy.url, [name]) == {name: 0}
        async with ParkingLot(proxy.url, name) as lot:
            assert lot.size == 0


async def test_messages_that_a_client_held_when_the_leader_was_back_are_counted(
    new_app: NewApp, amqp_url: str, name: str
) -> None:
    """A leader that answers again hands messages out to clients that have given up, and requeues them soon after."""
    app = new_app()
    app.declare(Queue(f"{name}.dead", dead_letter_exchange=None))
    async with app, Proxy(amqp_url) as proxy:
        await app.publish_many([b"1", b"2"], key=f"{name}.dead")
        async with ParkingLot(amqp_url, f"{name}.dead") as holder:
            await anext(aiter(holder))
            proxy.to_client.rewrite = counts = EmptyCounts(1)
            counting = asyncio.create_task(count_messages(proxy.url, [f"{name}.dead"]))
            # Two more replies: if the first 0 is verified once, the second has the consumer.
            await eventually(lambda: counts.seen >= 4 or counting.done(), "the broker is asked again")
        assert await counting == {f"{name}.dead": 2}


async def test_a_reader_waits_while_the_queue_has_no_leader(
    new_app: NewApp, amqp_url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parking_lot, "IDLE_SECONDS", 0.05)
    app = new_app()
    async with (
        one_letter_behind_proxy(app, amqp_url, name) as (proxy, counts),
        ParkingLot(proxy.url, f"{name}.dead") as lot,
    ):
        lot.size = 3  # others come later, as if they had been in transit
        letters = aiter(lot)
        assert (await anext(letters)).delivery.body == b"1"
        counts.left = 1000
        following = asyncio.ensure_future(anext(letters))
        await eventually(lambda: counts.rewritten >= 10, "the broker is asked again")
        assert not following.done()
        await app.publish(b"2", key=f"{name}.dead")
        assert (await following).delivery.body == b"2"
        counts.left = 0
        assert [letter async for letter in letters] == []


async def test_reading_a_queue_that_has_no_leader_raises_an_error(
    new_app: NewApp, amqp_url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parking_lot, "IDLE_SECONDS", 0.05)
    async with one_letter_behind_proxy(new_app(), amqp_url, name) as (proxy, counts):

        async def read() -> None:
            async with ParkingLot(proxy.url, f"{name}.dead") as lot:
                lot.size, counts.left = 2, 1000
                # On a slow machine the reply times out, with the same result.
                monkeypatch.setattr(parking_lot, "ANSWER_SECONDS", 0.1)
                async for _ in lot:
                    pass

        with pytest.raises(TransportUnavailable, match="cannot read queue"):
            await read()


async def test_removals_that_no_leader_confirmed_raise_an_error(
    new_app: NewApp, amqp_url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with one_letter_behind_proxy(new_app(), amqp_url, name) as (proxy, counts):

        async def remove() -> None:
            async with ParkingLot(proxy.url, f"{name}.dead") as lot:
                lot.remove(await anext(aiter(lot)))
                counts.left = 1000
                monkeypatch.setattr(parking_lot, "ANSWER_SECONDS", 0.1)

        with pytest.raises(TransportUnavailable, match="removed messages may still be in it"):
            await remove()


async def test_messages_that_are_not_back_in_their_queue_are_reported(
    new_app: NewApp,
    amqp_url: str,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = new_app()
    app.declare(Queue(f"{name}.dead", dead_letter_exchange=None))
    async with app, Proxy(amqp_url) as proxy:
        proxy.to_client.rewrite = EmptyCounts(1000, after=[CHANNEL_CLOSE_OK])
        await app.publish(b"1", key=f"{name}.dead")
        async with ParkingLot(proxy.url, f"{name}.dead") as lot:
            assert (await anext(aiter(lot))).delivery.body == b"1"
            # On a slow machine another reply times out, with the same result.
            monkeypatch.setattr(parking_lot, "ANSWER_SECONDS", 0.1)
    assert f"event=dead_letters.requeue_unconfirmed queue={name}.dead" in caplog.text


async def test_the_end_of_a_block_waits_for_messages_that_were_not_read(
    new_app: NewApp, amqp_url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More messages stay in the queue than are read, so their number alone proves nothing."""
    monkeypatch.setattr(parking_lot, "PAGE", 5)
    app = new_app()
    app.declare(Queue(f"{name}.dead", dead_letter_exchange=None))
    async with app:
        await app.publish_many([b"%d" % n for n in range(16)], key=f"{name}.dead")
        sizes = []
        for _ in range(15):
            async with ParkingLot(amqp_url, f"{name}.dead") as lot:
                sizes.append(lot.size)
                letters = aiter(lot)
                for _ in range(6):
                    await anext(letters)
    assert sizes == [16] * 15


async def test_messages_that_arrive_while_a_block_ends_are_awaited_once(
    new_app: NewApp, amqp_url: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker counts them as ready, and delivers them before it has closed the channel."""
    app = new_app()
    app.declare(Queue(f"{name}.dead", dead_letter_exchange=None))
    async with app, Proxy(amqp_url) as proxy:
        proxy.to_client.rewrite = counts = CountedDeliveries(passing=1)
        for number in range(5):
            await app.publish(b"%d" % number, key=f"{name}.dead")
        async with ParkingLot(proxy.url, f"{name}.dead") as lot:
            await anext(aiter(lot))
            await eventually(lambda: counts.held == 4, "the others are on their way")
    assert "requeue_unconfirmed" not in caplog.text


async def test_a_missing_queue_raises_an_error(amqp_url: str, name: str) -> None:
    with pytest.raises(TopologyMismatch, match="no queue"):
        async with ParkingLot(amqp_url, name):
            pass


async def test_browsing_does_not_count_towards_the_delivery_limit(new_app: NewApp, name: str) -> None:
    consumer = OrderConsumer(new_app(), name)
    async with consumer.app:
        await consumer.dead_letter_orders(1)
        for _ in range(22):
            assert len(await consumer.parked_messages(1)) == 1
