"""Content types: JSON, MessagePack and text are decoded, unknown types are dead-lettered with the reason."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from warren.sdk import Command, ConfigError, Request
from warren.sdk.messages.content_encodings import LARGEST_BODY, decode_body


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


@pytest.mark.parametrize(
    "properties", [{"content_type": "application/xml"}, {"content_encoding": "gzip"}], ids=str
)
async def test_bytes_handlers_get_any_content_as_it_was_published(
    make_app: MakeApp, amqp_client: AsyncClient, name: str, properties: dict[str, str]
) -> None:
    app = make_app()
    seen: asyncio.Queue[bytes] = asyncio.Queue()

    @app.handle(bytes, queue=name)
    async def take(body: bytes) -> None:
        seen.put_nowait(body)

    async with app:
        await amqp_client.put(name, b"<x/>", **properties)
        assert await asyncio.wait_for(seen.get(), 60) == b"<x/>"


ORDER = '{"name":"Müller","n":1}'


def gzipped(body: bytes) -> bytes:
    return gzip.compress(body, mtime=0)


ENCODED: dict[str, tuple[dict[str, str], bytes]] = {
    "gzip": ({"content_encoding": "gzip"}, gzipped(ORDER.encode())),
    "x-gzip": ({"content_encoding": "X-GZIP"}, gzipped(ORDER.encode())),
    "gzip of two members": (
        {"content_encoding": "gzip"},
        gzipped(ORDER[:5].encode()) + gzipped(ORDER[5:].encode()),
    ),
    "deflate": ({"content_encoding": "deflate"}, zlib.compress(ORDER.encode())),
    "raw deflate": ({"content_encoding": "deflate"}, zlib.compress(ORDER.encode(), wbits=-15)),
    "base64": ({"content_encoding": "base64"}, base64.encodebytes(ORDER.encode())),
    "gzip and base64": ({"content_encoding": "gzip, base64"}, base64.b64encode(gzipped(ORDER.encode()))),
    "byte order mark": ({}, b"\xef\xbb\xbf" + ORDER.encode()),
    "byte order mark in gzip": ({"content_encoding": "gzip"}, gzipped(b"\xef\xbb\xbf" + ORDER.encode())),
    "charset": ({"content_type": "application/json; charset=ISO-8859-1"}, ORDER.encode("latin-1")),
    "quoted charset": ({"content_type": 'application/json;Charset="utf-16"'}, ORDER.encode("utf-16")),
    "charset in gzip": (
        {"content_type": "application/json; charset=windows-1252", "content_encoding": "gzip"},
        gzipped(ORDER.encode("cp1252")),
    ),
    "charset of Celery": ({"content_encoding": "iso-8859-15"}, ORDER.encode("iso-8859-15")),
    "charset before that of Celery": (
        {"content_type": "application/json; charset=utf-8", "content_encoding": "latin-1"},
        ORDER.encode(),
    ),
    "plain": ({"content_encoding": "UTF-8"}, ORDER.encode()),
    "binary": ({"content_encoding": "binary"}, ORDER.encode()),
    "no encoding": ({"content_encoding": "application/json"}, ORDER.encode()),
    "no charset": ({"content_type": "application/json; charset=klingon"}, ORDER.encode()),
    "MessagePack": (
        {"content_type": "application/msgpack", "content_encoding": "gzip"},
        gzipped(msgpack.packb({"name": "Müller", "n": 1})),
    ),
    "MessagePack with a charset": (
        {"content_type": "application/msgpack; charset=latin-1"},
        msgpack.packb({"name": "Müller", "n": 1}),
    ),
}
"""Content as other clients encode it: properties and body."""


@pytest.mark.parametrize("how", ENCODED)
async def test_content_of_other_clients_is_decoded(
    make_app: MakeApp, amqp_client: AsyncClient, name: str, how: str
) -> None:
    class Order(Command, queue=name):
        name: str
        n: int

    app = make_app()
    seen: asyncio.Queue[Order] = asyncio.Queue()

    @app.handle(Order)
    async def take(order: Order) -> None:
        seen.put_nowait(order)

    properties, body = ENCODED[how]
    async with app:
        await amqp_client.put(name, body, **{"content_type": "application/json", **properties})
        message = await asyncio.wait_for(seen.get(), 60)
    assert (message.name, message.n) == ("Müller", 1)


@pytest.mark.parametrize(
    ("properties", "body"),
    [
        ({"content_type": "text/plain; charset=iso-8859-1"}, "Müller".encode("latin-1")),
        ({"content_type": "text/plain", "content_encoding": "gzip"}, gzipped("Müller".encode())),
        ({"content_type": "text/plain; charset=utf-8"}, "\ufeffMüller".encode()),
        ({"content_type": "text/plain; charset=utf-16le"}, "Müller".encode("utf-16-le")),
    ],
    ids=str,
)
async def test_text_of_other_clients_is_decoded(
    make_app: MakeApp, amqp_client: AsyncClient, name: str, properties: dict[str, str], body: bytes
) -> None:
    app = make_app()
    seen: asyncio.Queue[str] = asyncio.Queue()

    @app.handle(str, queue=name)
    async def take(text: str) -> None:
        seen.put_nowait(text)

    async with app:
        await amqp_client.put(name, body, **properties)
        assert await asyncio.wait_for(seen.get(), 60) == "Müller"


BOMB = gzipped(bytes(LARGEST_BODY + 1))
UNREADABLE: dict[str, tuple[dict[str, str], bytes, str, str]] = {
    "too large": (
        {"content_encoding": "gzip"}, BOMB, "undecodable", "the decompressed content is larger than 16777216 bytes",
    ),
    "too large in two steps": (
        {"content_encoding": "gzip, gzip"}, gzipped(BOMB), "undecodable",
        "the decompressed content is larger than 16777216 bytes",
    ),
    "too many members": (
        {"content_encoding": "gzip"}, gzipped(b"") * 100_000, "undecodable",
        "the content has more than 16 members of gzip data",
    ),
    "no gzip": ({"content_encoding": "gzip"}, b"{}", "undecodable", "the content is not valid gzip"),
    "half of gzip": (
        {"content_encoding": "gzip"}, gzipped(ORDER.encode())[:-9], "undecodable", "the content ends within its gzip data",
    ),
    "empty gzip": ({"content_encoding": "gzip"}, b"", "undecodable", "the content ends within its gzip data"),
    "no deflate": ({"content_encoding": "deflate"}, b"\xff\xff", "undecodable", "the content is not valid deflate"),
    "no base64": ({"content_encoding": "base64"}, b"{}!", "undecodable", "the content is not valid Base64"),
    "no utf-16": (
        {"content_type": "application/json; charset=utf-16"}, b"\xff\xfe\x00", "undecodable",
        "the content is not valid utf-16",
    ),
    "brotli": (
        {"content_encoding": "br"}, b"\x0b\x05\x80{}\x03", "unknown_content_encoding",
        "the content encoding 'br' is not known",
    ),
    "charset": (
        {"content_type": "application/json; charset=klingon"}, b"\xff\xfe", "unknown_content_encoding",
        "the character set 'klingon' is not known",
    ),
    "codec that is no charset": (
        {"content_encoding": "rot13"}, b"{", "unknown_content_encoding", "the content encoding 'rot13' is not known",
    ),
    "slow codec": (
        {"content_type": "application/json; charset=punycode"}, b"{", "unknown_content_encoding",
        "the character set 'punycode' is not known",
    ),
    "too many": (
        {"content_encoding": "gzip, gzip, gzip, gzip, gzip"}, b"{", "unknown_content_encoding",
        "the content has 5 encodings, and at most 4 are read",
    ),
}  # fmt: skip
"""Content that cannot be decoded: properties, body, and the reason and the error of its dead letter."""


@pytest.mark.parametrize("how", UNREADABLE)
async def test_content_that_cannot_be_decoded_is_dead_lettered_with_the_reason(
    make_app: MakeApp, amqp_client: AsyncClient, name: str, how: str
) -> None:
    app = make_app()
    seen: asyncio.Queue[object] = asyncio.Queue()

    @app.handle(dict, queue=name)
    async def take(message: dict[str, Any]) -> None:
        seen.put_nowait(message)

    properties, body, reason, error = UNREADABLE[how]
    async with app:
        await amqp_client.put(name, body, **{"content_type": "application/json", **properties})
        await amqp_client.put(name, b'{"n":1}')
        dead = await amqp_client.take(f"{name}.dead")
        assert await asyncio.wait_for(seen.get(), 60) == {"n": 1}
    assert (dead.body, dead.headers["warren-dead-reason"]) == (body, reason)
    assert str(dead.headers["warren-dead-error"]).partition(": ")[2] == error
    assert dead.content_encoding == properties.get("content_encoding")


@pytest.mark.parametrize("how", ["gzip", "charset", "byte order mark", "charset of Celery"])
async def test_a_reply_of_another_client_is_decoded(
    make_app: MakeApp, amqp_client: AsyncClient, name: str, how: str
) -> None:
    class Ask(Request[dict[str, Any]], queue=name):
        pass

    app = make_app()
    app.publishes(Ask)
    properties, body = ENCODED[how]
    async with app:
        asking = asyncio.ensure_future(app.call(Ask()))
        request = await amqp_client.take(name)
        assert request.reply_to is not None
        await amqp_client.put(
            request.reply_to,
            body,
            correlation_id=request.correlation_id,
            **{"content_type": "application/json", **properties},
        )
        assert await asking == {"name": "Müller", "n": 1}


ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzipped,
    "deflate": zlib.compress,
    "base64": base64.b64encode,
}


@given(
    encodings=st.lists(st.sampled_from(["gzip", "deflate", "base64"]), max_size=4),
    text=st.text(),
    times=st.sampled_from([1, 1000]),
    charset=st.sampled_from(["utf-8", "utf-16", "utf-32", "utf-16be", "utf-7", "gb18030"]),
)
def test_what_is_encoded_decodes_to_the_same(
    encodings: list[str], text: str, times: int, charset: str
) -> None:
    text = text.replace("\ufeff", "").encode("utf-8", "replace").decode() * times
    body = text.encode(charset)
    for encoding in encodings:
        body = ENCODERS[encoding](body)
    assert decode_body(body, ", ".join(encodings), f"text/plain; charset={charset}") == text.encode()


@given(body=st.binary(), content_encoding=st.text(), content_type=st.text())
def test_any_properties_are_decoded_or_refused_as_values(
    body: bytes, content_encoding: str, content_type: str
) -> None:
    with contextlib.suppress(ValueError):
        decode_body(body, content_encoding, f"text/plain; charset={content_type}")


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
