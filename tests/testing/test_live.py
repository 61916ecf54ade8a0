"""Test harness on a live broker: isolated names, scaled times, and clean-up."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import aio_pika
import pytest

from tests.support.processes import closed_port
from warren.broker import Broker, BrokerConfig
from warren.patterns import Deadline, Once, SqliteStore
from warren.sdk import (
    App,
    Binding,
    Command,
    Event,
    Exchange,
    Queue,
    RemoteError,
    Request,
    TransportUnavailable,
    Unroutable,
)
from warren.testing import Warren
from warren.testing.name_rewriting import NameRewriter
from warren.testing.proxy import RewritingProxy

SCALE = 600.0


class Placed(Event, exchange="live-orders", key="order.placed", audience=["live-billing"]):
    order_id: str


class Quote(Command, queue=Queue("live-quotes", message_ttl=timedelta(minutes=5))):
    sku: str


class GetPrice(Request[int], queue="live-prices"):
    sku: str


def patient(url: str) -> Warren:
    warren = Warren(url, SCALE)
    warren.patience = 60.0
    return warren


async def comes(warren: Warren, condition: Callable[[], bool]) -> None:
    """Wait until the messages that are due have arrived: a busy machine is slow."""
    for _ in range(400):
        if condition():
            return
        await warren.settle()
    raise AssertionError("it did not come")


async def test_it_publishes_calls_expires_and_dead_letters_as_in_this_process(amqp_url: str) -> None:
    warren, app = patient(amqp_url), App()

    @app.handle(Placed, queue="live-billing")
    async def bill(order: Placed) -> None:
        await app.publish(Quote(sku=order.order_id))

    @app.handle(GetPrice)
    async def price(request: GetPrice) -> int:
        if request.sku == "desk":
            raise RemoteError("unknown_sku", request.sku)
        return len(request.sku)

    async with warren.running(app):
        await warren.publish(Placed(order_id="lamp"))
        await comes(warren, lambda: bool(warren.published(Quote)))
        assert warren.handled(Placed) == [Placed(order_id="lamp")]
        assert warren.published(Quote) == [Quote(sku="lamp")]
        assert await warren.call(GetPrice(sku="lamp")) == 4
        with pytest.raises(RemoteError, match="desk"):
            await warren.call(GetPrice(sku="desk"))
        began = warren.now
        await warren.advance(minutes=6)
        assert warren.now - began >= timedelta(minutes=6)
        await comes(warren, lambda: bool(warren.dead_letters))
        [dead] = warren.dead_letters
        assert (dead.queue, dead.reason, dead.read(Quote)) == ("live-quotes", "expired", Quote(sku="lamp"))
        with pytest.raises(Unroutable) as returned:
            await app.publish(b"", exchange="", key="live-nowhere")
        assert returned.value.routing_key == "live-nowhere"


async def test_a_deadline_of_five_minutes_is_over_in_half_a_second(amqp_url: str, tmp_path: Path) -> None:
    class CancelOrder(Command, queue="live-cancel"):
        order_id: str

    warren, app = patient(amqp_url), App()
    store = SqliteStore(tmp_path / "decisions.sqlite")
    unpaid = Deadline(
        "live-unpaid",
        after=timedelta(minutes=5),
        signal=lambda key: CancelOrder(order_id=key),
        store=store,
    )
    app.include(unpaid)

    @app.handle(Placed, queue="live-starts")
    async def start(order: Placed) -> None:
        await unpaid.start(order.order_id)

    @app.handle(CancelOrder, once=Once(store))
    async def cancel(order: CancelOrder) -> None: ...

    async with warren.running(app):
        await warren.publish(Placed(order_id="42"))
        await warren.advance(minutes=5)
        await comes(warren, lambda: bool(warren.handled(CancelOrder)))
        assert warren.handled(CancelOrder) == [CancelOrder(order_id="42")]
        assert unpaid.statistics.signalled == 1


async def test_two_tests_on_one_broker_are_isolated_and_clean_up(amqp_url: str) -> None:
    class Ping(Command, queue="live-pings"):
        number: int

    first, second, names = patient(amqp_url), patient(amqp_url), list[str]()

    def app_of() -> App:
        app = App()

        @app.handle(Ping)
        async def ping(message: Ping) -> None: ...

        return app

    async with first.running(app_of()), second.running(app_of()):
        for number in range(10):
            await first.publish(Ping(number=number))
        await comes(first, lambda: len(first.handled(Ping)) == 10)
        assert second.handled(Ping) == []
        for warren in (first, second):
            proxy = warren._environment._proxy  # type: ignore[attr-defined]
            names += [*proxy._queues]
    assert all(re.search(r"\.t[0-9a-f]{8}$", name) for name in names)
    assert len(names) == len(set(names)) >= 6
    async with await aio_pika.connect(amqp_url) as connection:
        for name in names:
            with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity):
                await (await connection.channel()).get_queue(name)


async def test_a_client_behind_the_proxy_gets_its_own_names(amqp_url: str) -> None:
    async with (
        RewritingProxy(amqp_url, NameRewriter(".t1", 10)) as relay,
        await aio_pika.connect(relay.url) as connection,
    ):
        channel = await connection.channel()
        dead = await channel.declare_queue("seen-dead")
        first = await channel.declare_queue(
            "seen",
            arguments={
                "x-message-ttl": 300,
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": "seen-dead",
            },
        )
        assert first.name == "seen"
        exchange = await channel.declare_exchange("seen-x", "fanout")
        await first.bind(exchange)
        await exchange.publish(aio_pika.Message(b"one"), "any")
        async with dead.iterator(timeout=60) as arrived:
            message = await anext(arrived)
            await message.ack()
        assert (message.exchange, message.routing_key) == ("", "seen-dead")
        [death] = message.headers["x-death"]  # type: ignore[misc,str-unpack]
        assert (death["queue"], death["exchange"]) == ("seen", "seen-x")  # type: ignore[call-overload,index]
        with pytest.raises(aio_pika.exceptions.ChannelPreconditionFailed) as refused:
            await channel.declare_queue("seen", arguments={"x-message-ttl": 9000})
        assert "'seen'" in str(refused.value)
        assert ".t1" not in str(refused.value)


async def test_the_virtual_host_of_the_url_is_tested() -> None:
    async with Broker(BrokerConfig(default_vhost="a/../%2F")) as broker:
        warren, app = patient(broker.url), App()
        taken = list[bytes]()

        @app.handle(bytes, queue="live-taken")
        async def take(body: bytes) -> None:
            taken.append(body)

        async with warren.running(app):
            await warren.publish(b"1", key="live-taken")
            await comes(warren, lambda: bool(taken))
        left = broker.virtual_hosts.declarations[b"a/../%2F"].vhost.queues
        assert not [name for name in left if name.startswith(b"live-taken")]


async def test_an_unreachable_broker_fails_at_once() -> None:
    with closed_port() as port:
        warren = Warren(f"amqp://guest:secret@127.0.0.1:{port}/", SCALE)
        with pytest.raises(TransportUnavailable, match=r"no broker under test at amqp://guest@") as raised:
            async with warren.running(App()):
                raise AssertionError
    assert "secret" not in str(raised.value)


async def test_topology_of_every_kind_passes(amqp_url: str) -> None:
    warren, app = patient(amqp_url), App()
    app.declare(
        Exchange("live-in", alternate_exchange="live-lost"),
        Exchange("live-lost", type="fanout"),
        Exchange("live-next"),
        Queue("live-kept"),
        Binding("live-lost", "live-kept"),
        Binding("live-in", "live-next", "a.#", to_exchange=True),
    )
    heard = list[bytes]()

    @app.handle(bytes, queue="live-kept")
    async def keep(body: bytes) -> None:
        heard.append(body)

    async with warren.running(app):
        await warren.publish(b"nobody's", exchange="live-in", key="b")
        await comes(warren, lambda: bool(heard))
    assert heard == [b"nobody's"]
