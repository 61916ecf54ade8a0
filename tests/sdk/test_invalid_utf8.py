"""Messages with strings that are not UTF-8: they are dead-lettered, and other messages are handled."""

from __future__ import annotations

import asyncio
import struct

import pytest

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.frames import (
    BASIC_GET,
    BASIC_GET_OK,
    BASIC_PUBLISH,
    BODY,
    HEADER,
    Content,
    frame,
    long,
    method,
    short,
)
from tests.support.polling import eventually
from tests.support.raw_client import raw_connection
from warren.sdk import Binding, Delivery, Exchange, Queue, Request

NO_TEXT = b"caf\xe9 \xff"
FLAGS = {
    "content_type": 0x8000,
    "correlation_id": 0x0400,
    "reply_to": 0x0200,
    "message_id": 0x0080,
    "type": 0x0020,
    "app_id": 0x0008,
}


def raw(data: bytes) -> bytes:
    """Return a short string of any bytes."""
    return bytes([len(data)]) + data


def send(url: str, exchange: str, key: bytes, body: bytes, flags: int = 0, properties: bytes = b"") -> None:
    with raw_connection(url) as client:
        client.open()
        client.select_confirms()
        header = struct.pack(">HHQH", 60, 0, len(body), flags) + properties
        client.send_bytes(
            method(1, BASIC_PUBLISH, b"\0\0" + short(exchange) + raw(key) + b"\0")
            + frame(HEADER, 1, header)
            + frame(BODY, 1, body)
        )
        client.await_confirms(1)


def take(url: str, queue: str) -> Content:
    """Return the next message of the queue as it is on the wire."""
    with raw_connection(url) as client:
        client.open()
        client.send_bytes(method(1, BASIC_GET, b"\0\0" + short(queue) + b"\1"))
        return client.expect_content(BASIC_GET_OK)


@pytest.mark.parametrize("name_of", [*FLAGS, "routing_key"])
async def test_a_message_with_invalid_utf8_is_dead_lettered_and_its_neighbours_are_handled(
    make_app: MakeApp,
    amqp_client: AsyncClient,
    amqp_url: str,
    name: str,
    name_of: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = make_app()
    app.declare(Exchange(f"{name}.x", type="fanout"), Binding(f"{name}.x", name))
    seen: list[bytes] = []

    @app.handle(bytes, queue=name)
    async def take_it(body: bytes) -> None:
        seen.append(body)

    async with app:
        await app.publish(b"before", key=name)
        if name_of == "routing_key":
            await asyncio.to_thread(send, amqp_url, f"{name}.x", NO_TEXT, b"odd")
        else:
            await asyncio.to_thread(send, amqp_url, "", name.encode(), b"odd", FLAGS[name_of], raw(NO_TEXT))
        await eventually(lambda: app.statistics().handlers[name].dead_lettered == 1, "it is dead")
        await app.publish(b"after", key=name)
        await eventually(lambda: app.statistics().subscriptions[name].acknowledged == 3, "all are settled")
        assert app.statistics().reconnects == 0
    assert seen == [b"before", b"after"]
    dead = await asyncio.to_thread(take, amqp_url, f"{name}.dead")
    assert dead.body == b"odd"
    assert b"undecodable" in dead.header
    assert f"ValueError: the {name_of.replace('_', ' ')} is not valid UTF-8".encode() in dead.header
    if name_of != "routing_key":
        assert raw(NO_TEXT) in dead.header, "the copy keeps the bytes that came"
    caplog.text.encode()  # a handler that writes UTF-8 can write it


async def test_the_dead_letter_of_a_custom_exchange_keeps_a_routing_key_of_any_bytes(
    make_app: MakeApp, amqp_url: str, name: str
) -> None:
    app = make_app()
    app.declare(
        Exchange(f"{name}.x", type="fanout"), Binding(f"{name}.x", name),
        Exchange(f"{name}.dlx", type="fanout"), Queue(f"{name}.graves", dead_letter_exchange=None),
        Binding(f"{name}.dlx", f"{name}.graves"),
    )  # fmt: skip

    @app.handle(bytes, queue=Queue(name, dead_letter_exchange=f"{name}.dlx"))
    async def take_it(body: bytes) -> None:
        pytest.fail("it was not readable")

    async with app:
        await asyncio.to_thread(send, amqp_url, f"{name}.x", NO_TEXT, b"odd")
        await eventually(lambda: app.statistics().subscriptions[name].acknowledged == 1, "it is dead")
    dead = await asyncio.to_thread(take, amqp_url, f"{name}.graves")
    assert raw(NO_TEXT) in dead.frame.payload


async def test_headers_with_invalid_utf8_are_bytes(
    make_app: MakeApp, amqp_client: AsyncClient, amqp_url: str, name: str
) -> None:
    """A long string may hold any bytes (AMQP 0-9-1 section 4.2.5.3), so the message is accepted."""
    app = make_app()
    seen: asyncio.Queue[object] = asyncio.Queue()

    @app.handle(bytes, queue=name)
    async def take_it(body: bytes, delivery: Delivery) -> None:
        seen.put_nowait(dict(delivery.headers))
        raise ZeroDivisionError

    fields = (
        raw(b"text") + b"S" + long(b"caf\xc3\xa9"),
        raw(b"bytes") + b"S" + long(NO_TEXT),
        raw(b"n") + b"b\xff",
    )
    async with app:
        await asyncio.to_thread(send, amqp_url, "", name.encode(), b"1", 0x2000, long(b"".join(fields)))
        assert await seen.get() == {"text": "café", "bytes": NO_TEXT, "n": -1}
        await eventually(lambda: app.statistics().handlers[name].dead_lettered == 1, "it is dead")
    dead = await asyncio.to_thread(take, amqp_url, f"{name}.dead")
    # Each for itself: RabbitMQ sorts them.
    missing = [field for field in fields if field not in dead.header]
    assert not missing, "every header goes on with its own type and bytes"


async def test_a_discarded_reply_with_invalid_utf8_is_counted(
    make_app: MakeApp, amqp_url: str, name: str
) -> None:
    app = make_app()
    replies: asyncio.Queue[str] = asyncio.Queue()

    @app.handle(bytes, queue=name)
    async def take_it(body: bytes, delivery: Delivery) -> None:
        replies.put_nowait(str(delivery.properties["reply_to"]))

    class Ask(Request[int], queue=name):
        pass

    async with app:
        calling = asyncio.ensure_future(app.call(Ask(), timeout=30))
        reply_to = await replies.get()
        await asyncio.to_thread(send, amqp_url, "", reply_to.encode(), b"1", 0x0400, raw(NO_TEXT))
        await eventually(lambda: app.statistics().calls.discarded_replies == 1, "it is counted")
        assert app.ready
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
