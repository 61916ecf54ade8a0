"""Middlewares: change publishes and deliveries, and choose outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.polling import eventually
from warren.sdk import (
    App,
    BatchError,
    Command,
    ConfigError,
    DeadLetter,
    Delivery,
    Outgoing,
    Queue,
    RemoteError,
    Request,
    Requeue,
    current_delivery,
)

Publish = Callable[[Outgoing], Awaitable[None]]
Handle = Callable[[Delivery], Awaitable[None]]


def reverse(app: App, tag: str, order: list[str], *, opens: str = "") -> None:
    """Return middlewares that reverse bodies and append the tag."""

    async def seal(outgoing: Outgoing, call_next: Publish) -> None:
        order.append(f"publish {tag}")
        outgoing.set_body(outgoing.body[::-1] + tag.encode())
        outgoing.set_header(f"sealed-{tag}", True)
        outgoing.set("app_id", tag)
        await call_next(outgoing)

    async def unseal(delivery: Delivery, call_next: Handle) -> None:
        order.append(f"handle {tag}")
        if not delivery.body.endswith((opens or tag).encode()):
            raise DeadLetter("it is not sealed")
        properties = {**delivery.properties, "app_id": "opened"}
        await call_next(delivery.replace(body=delivery.body[: -len(tag)][::-1], properties=properties))

    app.middleware(publish=seal, handle=unseal)


async def test_both_sides_change_the_message_from_the_user_to_the_wire_and_back(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    class Ping(Command, queue=name):
        number: int

    app = make_app()
    order: list[str] = []
    seen: asyncio.Queue[tuple[Ping, Delivery, Delivery | None]] = asyncio.Queue()
    reverse(app, "a", order)
    reverse(app, "b", order)

    @app.handle(Ping)
    async def ping(message: Ping, delivery: Delivery) -> None:
        seen.put_nowait((message, delivery, current_delivery()))

    async with app:
        await app.publish(Ping(number=1), headers={"tenant": "x"})
        message, delivery, current = await asyncio.wait_for(seen.get(), 60)
        await app.publish(b"plain", key=f"{name}.dead")
        wire = await amqp_client.take(f"{name}.dead")
    assert message == Ping(number=1)
    assert (delivery.properties["app_id"], current) == ("opened", delivery)
    assert {"sealed-a": True, "sealed-b": True, "tenant": "x"}.items() <= delivery.headers.items()
    assert order[:4] == ["publish a", "publish b", "handle b", "handle a"]
    assert wire.body == b"a" + b"plain" + b"b"
    assert wire.app_id == "b"


async def test_a_middleware_dead_letters_the_original_message(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()
    reverse(app, "a", [])

    @app.handle(bytes, queue=name)
    async def take(body: bytes) -> None:
        pytest.fail("it was not sealed")

    async with app:
        await amqp_client.put(name, b"forged")
        dead = await amqp_client.take(f"{name}.dead")
    assert (dead.body, dead.headers["warren-dead-reason"]) == (b"forged", "rejected")
    assert dead.headers["warren-dead-error"] == "DeadLetter: it is not sealed"


async def test_a_dead_letter_does_not_pass_the_publish_middlewares(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()
    reverse(app, "a", [])

    @app.handle(bytes, queue=name)
    async def fail(body: bytes) -> None:
        assert body == b"12"
        raise DeadLetter("no")

    async with app:
        await app.publish(b"12", key=name)
        assert (await amqp_client.take(f"{name}.dead")).body == b"21a"


async def test_a_forwarded_message_does_not_pass_the_publish_middlewares(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()
    reverse(app, "a", [])
    app.declare(*_queue(f"{name}.further"))

    @app.handle(bytes, queue=name)
    async def forward(body: bytes, delivery: Delivery) -> None:
        await app.forward(delivery, exchange="", key=f"{name}.further")

    async with app:
        await app.publish(b"12", key=name)
        assert (await amqp_client.take(f"{name}.further")).body == b"21a"


async def test_requests_and_replies_pass_the_middlewares_of_both_sides(make_app: MakeApp, name: str) -> None:
    class Double(Request[int], queue=name):
        number: int

    server, client, stranger = make_app(), make_app(), make_app()
    order: list[str] = []
    reverse(server, "a", [])
    reverse(client, "a", order)
    reverse(stranger, "a", [], opens="b")

    @server.handle(Double)
    async def double(request: Double) -> int:
        if request.number == 0:
            raise RemoteError("zero", "nothing to double")
        return request.number * 2

    async with server, client:
        assert await client.call(Double(number=21), timeout=60) == 42
        assert order == ["publish a", "handle a"]
        with pytest.raises(RemoteError, match="zero: nothing to double"):
            await client.call(Double(number=0), timeout=60)
        async with stranger:
            with pytest.raises(RemoteError, match="rejected_reply: it is not sealed"):
                await stranger.call(Double(number=21), timeout=60)


async def test_an_error_of_a_middleware_is_retried_like_one_of_the_handler(
    make_app: MakeApp, name: str
) -> None:
    app = make_app()
    tried: list[bytes] = []

    async def stumble(delivery: Delivery, call_next: Handle) -> None:
        tried.append(delivery.body)
        if len(tried) == 1:
            raise ConnectionError("the key server is away")
        if len(tried) == 2:
            raise Requeue
        await call_next(delivery)

    app.middleware(handle=stumble)

    @app.handle(bytes, queue=name)
    async def take(body: bytes) -> None:
        pass

    async with app:
        await app.publish(b"1", key=name)
        await eventually(lambda: app.statistics().handlers[name].handled == 1, "it is handled in the end")
        assert app.statistics().subscriptions[name].requeued == 1
    assert len(tried) == 3


async def test_a_message_that_a_middleware_does_not_pass_on_is_acknowledged(
    make_app: MakeApp, name: str
) -> None:
    app = make_app()

    async def skip(delivery: Delivery, call_next: Handle) -> None:
        pass

    app.middleware(handle=skip)

    @app.handle(bytes, queue=name)
    async def take(body: bytes) -> None:
        pytest.fail("the middleware kept it")

    async with app:
        await app.publish(b"1", key=name)
        await eventually(lambda: app.statistics().subscriptions[name].acknowledged == 1, "it is acknowledged")


async def test_publishes_keep_their_order_although_a_middleware_waits(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()
    released = asyncio.Event()
    app.declare(*_queue(name))

    async def slow(outgoing: Outgoing, call_next: Publish) -> None:
        if outgoing.body == b"0":
            await released.wait()
        if outgoing.body == b"3":
            raise ValueError("not this one")
        await call_next(outgoing)

    app.middleware(publish=slow)
    async with app:
        publishing = asyncio.create_task(app.publish_many([b"0", b"1", b"2", b"3", b"4"], key=name))
        await asyncio.sleep(0)
        released.set()
        with pytest.raises(BatchError, match="a middleware failed: ValueError: not this one") as caught:
            await publishing
        assert [failure.index for failure in caught.value.report.failures] == [3]
        assert [(await amqp_client.take(name)).body for _ in range(4)] == [b"0", b"1", b"2", b"4"]
        with pytest.raises(ValueError, match="not this one"):
            await app.publish(b"3", key=name)


async def test_a_middleware_gets_the_outcome_of_the_publish(make_app: MakeApp, name: str) -> None:
    app = make_app()
    ended: list[str] = []

    async def watch(outgoing: Outgoing, call_next: Publish) -> None:
        try:
            await call_next(outgoing)
        except Exception as error:
            ended.append(type(error).__name__)
        else:
            ended.append("confirmed")

    app.middleware(publish=watch)
    app.declare(*_queue(name))
    async with app:
        await app.publish(b"1", key=name)
        await app.publish(b"1", key=f"{name}.nowhere")
        await app.publish(b"1", key=name, reliability="at_most_once")
    assert ended == ["confirmed", "Unroutable", "confirmed"]


async def test_a_middleware_must_be_added_before_the_start(make_app: MakeApp) -> None:
    app = make_app()
    with pytest.raises(ConfigError, match="needs publish= or handle="):
        app.middleware()
    async with app:
        with pytest.raises(ConfigError, match="add a middleware before it starts"):
            app.middleware(publish=None)


def _queue(name: str) -> list[Queue]:
    return [Queue(name, dead_letter_exchange=None)]
