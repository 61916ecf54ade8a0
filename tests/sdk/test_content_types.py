"""Content types: JSON, MessagePack and text are decoded, unknown types are dead-lettered with the reason."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgpack
import pytest

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from warren.sdk import Command, ConfigError, Request


async def test_a_message_is_encoded_with_its_classs_content_type(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    class Sample(Command, queue=name, content_type="application/msgpack"):
        identity: UUID
        total: Decimal
        at: datetime
        tags: frozenset[str]

    sample = Sample(
        identity=UUID(int=7), total=Decimal("9.90"), at=datetime(2026, 1, 2, tzinfo=UTC), tags=frozenset("ab")
    )
    app = make_app()
    seen: asyncio.Queue[Sample] = asyncio.Queue()

    @app.handle(Sample)
    async def take(message: Sample) -> None:
        seen.put_nowait(message)

    async with app:
        await app.publish(sample)
        assert await asyncio.wait_for(seen.get(), 60) == sample
        await app.publish(sample, exchange="", key=f"{name}.dead")
        wire = await amqp_client.take(f"{name}.dead")
        assert wire.content_type == "application/msgpack"
        assert msgpack.unpackb(wire.body)["total"] == "9.90"


async def test_a_request_can_be_encoded_as_messagepack(make_app: MakeApp, name: str) -> None:
    class Double(Request[int], queue=name, content_type="application/msgpack"):
        number: int

    app = make_app()

    @app.handle(Double)
    async def double(request: Double) -> int:
        return request.number * 2

    async with app:
        assert await app.call(Double(number=4)) == 8


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json; charset=utf-8", b'{"number":1}'),
        ("application/vnd.order+json", b'{"number":1}'),
        ("text/plain", b'{"number":1}'),
        (None, b'{"number":1}'),
        ("application/x-msgpack", msgpack.packb({"number": 1})),
    ],
)
async def test_equivalent_content_types_are_decoded_alike(
    make_app: MakeApp, amqp_client: AsyncClient, name: str, content_type: str | None, body: bytes
) -> None:
    class Ping(Command, queue=name):
        number: int

    app = make_app()
    seen: asyncio.Queue[Ping] = asyncio.Queue()

    @app.handle(Ping)
    async def take(message: Ping) -> None:
        seen.put_nowait(message)

    async with app:
        await amqp_client.put(name, body, content_type=content_type)
        assert await asyncio.wait_for(seen.get(), 60) == Ping(number=1)


@pytest.mark.parametrize(
    ("content_type", "body", "reason"),
    [
        ("application/x-python-serialize", b"\x80\x04K\x01.", "unknown_content_type"),
        ("application/xml", b"<number>1</number>", "unknown_content_type"),
        ("application/msgpack", b"\xc1", "undecodable"),
        ("application/msgpack", msgpack.packb({"number": "x"}), "undecodable"),
        ("application/json", msgpack.packb({"number": 1}), "undecodable"),
    ],
)
async def test_unknown_content_types_are_dead_lettered_with_the_reason(
    make_app: MakeApp, amqp_client: AsyncClient, name: str, content_type: str, body: bytes, reason: str
) -> None:
    class Ping(Command, queue=name):
        number: int

    app = make_app()

    @app.handle(Ping)
    async def take(message: Ping) -> None:
        pytest.fail("it was not readable")

    async with app:
        await amqp_client.put(name, body, content_type=content_type)
        dead = await amqp_client.take(f"{name}.dead")
    assert (dead.body, dead.content_type, dead.headers["warren-dead-reason"]) == (body, content_type, reason)


async def test_bytes_handlers_accept_any_content(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()
    seen: asyncio.Queue[bytes] = asyncio.Queue()

    @app.handle(bytes, queue=name)
    async def take(body: bytes) -> None:
        seen.put_nowait(body)

    async with app:
        await amqp_client.put(name, b"<x/>", content_type="application/xml")
        assert await asyncio.wait_for(seen.get(), 60) == b"<x/>"


def test_a_message_class_refuses_other_content_types() -> None:
    with pytest.raises(ConfigError, match="content_type is 'text/xml', it must be application/json or"):

        class Wrong(Command, queue="q", content_type="text/xml"):
            pass


def test_without_msgpack_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from warren.sdk.messages import content_types

    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(content_types, "import_module", missing)
    with pytest.raises(ConfigError, match=r"pip install 'warrenmq\[msgpack\]'"):
        content_types.pack({})
    with pytest.raises(ConfigError, match=r"Sent: MessagePack is not installed"):

        class Sent(Command, queue="q", content_type="application/msgpack"):
            pass


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "the body is empty"),
        (b"\xc1", "a value begins with the byte 0xC1, which MessagePack does not use"),
        (b"\x92\x01", "the body ends within a value"),
        (b"\x01\x02", "the value is followed by further bytes"),
        (b"\xa2\xff\xff", "a text is not valid UTF-8"),
        (b"\x91" * 5000, "values are nested too deeply"),
        (b"\x81\x90\x01", "a map has a key that is neither text nor bytes"),
    ],
)
async def test_the_dead_letter_of_bad_messagepack_has_the_reason(
    make_app: MakeApp, amqp_client: AsyncClient, name: str, body: bytes, reason: str
) -> None:
    class Sample(Command, queue=name):
        number: int

    app = make_app()

    @app.handle(Sample)
    async def take(message: Sample) -> None:
        pytest.fail("it is not readable")

    async with app:
        await amqp_client.put(name, body, content_type="application/msgpack")
        dead = await amqp_client.take(f"{name}.dead")
    assert dead.headers["warren-dead-error"] == f"ValueError: this is not MessagePack: {reason}"
