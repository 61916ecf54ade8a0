"""Headers that another client may send, of any type and form: they decide about their own message only."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient, async_client
from tests.support.field_values import TABLES, VALUES
from tests.support.frames import BASIC_PUBLISH, BODY, HEADER, frame, long, method, short
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.raw_client import raw_connection
from warren.sdk import App, Command, Delivery, Event, Queue, Retry, Unroutable
from warren.sdk.consume.keyed_ordering import KeyedOrdering

HEADERS = 0x2000
"""Flag of the property `headers` in a content header (AMQP 0-9-1 section 4.2.6.1)."""


def field(name: bytes, value: bytes) -> bytes:
    """Return an encoded field; `value` begins with the letter of its type."""
    return bytes((len(name),)) + name + value


def nested(depth: int) -> bytes:
    """Return an encoded value: arrays in each other, as deep as this."""
    value = b"V"
    for _ in range(depth):
        value = b"A" + long(value)
    return value


def send(url: str, exchange: str, key: str, *messages: tuple[bytes, bytes]) -> None:
    """Publish messages, each with the bytes of its header table and its body."""
    with raw_connection(url) as client:
        client.open()
        client.select_confirms()
        for table, body in messages:
            header = struct.pack(">HHQH", 60, 0, len(body), HEADERS) + long(table)
            client.send_bytes(
                method(1, BASIC_PUBLISH, b"\0\0" + short(exchange) + short(key) + b"\0")
                + frame(HEADER, 1, header)
                + frame(BODY, 1, body)
            )
        client.await_confirms(len(messages))


async def send_soon(url: str, exchange: str, key: str, *messages: tuple[bytes, bytes]) -> None:
    await asyncio.to_thread(send, url, exchange, key, *messages)


@pytest.mark.parametrize("tenant", [["a", "b"], {"name": "a"}, [["a"]], {}], ids=str)
async def test_a_header_that_is_no_key_holds_up_no_message(
    make_app: MakeApp, name: str, tenant: object, caplog: pytest.LogCaptureFixture
) -> None:
    class Order(Command, queue=name):
        n: int

    app = make_app()
    handled: list[int] = []

    @app.handle(Order, ordered_by="tenant", concurrency=3)
    async def handle(order: Order) -> None:
        handled.append(order.n)

    async with app:
        for n, key in enumerate(("a", tenant, tenant, "a"), 1):
            await app.publish(Order(n=n), headers={"tenant": key})
        await eventually(lambda: sorted(handled) == [1, 2, 3, 4], "all are handled")
        assert app.statistics().reconnects == 0
    warnings = [record.getMessage() for record in caplog.records if "ordering_key.failed" in record.msg]
    assert len(warnings) == 1
    assert f"event=ordering_key.failed queue={name} message_id=" in warnings[0]
    assert "error_type=TypeError error=unhashable type: " in warnings[0]


async def test_a_header_that_is_no_key_holds_up_no_message_of_a_stream(make_app: MakeApp, name: str) -> None:
    class Placed(Event, exchange=f"{name}.x", key="placed"):
        n: int

    app = make_app()
    handled: list[int] = []
    stream = Queue(name, type="stream")

    @app.handle(
        Placed, stream=stream, reader="r", offset="first", ordered_by="tenant", concurrency=3, prefetch=20
    )
    async def handle(event: Placed) -> None:
        handled.append(event.n)

    async with app:
        for n in range(1, 101):
            await app.publish(Placed(n=n), headers={"tenant": ["a"] if n in (2, 3) else "a"})
        await eventually(lambda: len(handled) == 100, "all are handled")
        assert app.statistics().reconnects == 0
    assert sorted(handled) == list(range(1, 101))


class Key:
    """A key whose hash or comparison raises, or changes."""

    def __init__(self, kind: str, order: int) -> None:
        self.kind = kind
        self.order = order
        self.hashed = 0

    def __hash__(self) -> int:
        self.hashed += 1
        if self.kind == "no hash" or (self.kind == "second hash" and self.hashed > 1):
            raise ZeroDivisionError("no hash")
        if self.kind == "changing hash":
            return self.hashed
        return 7

    def __eq__(self, other: object) -> bool:
        if self.kind == "no comparison":
            raise asyncio.CancelledError
        return isinstance(other, Key) and other.order == self.order


@pytest.mark.parametrize(
    "kind", ["no hash", "second hash", "changing hash", "no comparison", "cancelled", "exit"]
)
async def test_a_key_that_cannot_be_used_holds_up_no_message(make_app: MakeApp, name: str, kind: str) -> None:
    class Order(Command, queue=name):
        n: int

    app = make_app()
    handled: list[int] = []

    def key(order: Order) -> object:
        if kind == "cancelled":
            raise asyncio.CancelledError
        if kind == "exit":
            raise GeneratorExit
        return Key(kind, order.n % 3)

    @app.handle(Order, ordered_by=key, concurrency=4)
    async def handle(order: Order) -> None:
        await asyncio.sleep(0)
        handled.append(order.n)

    async with app:
        await app.publish_many([Order(n=n) for n in range(40)])
        await eventually(lambda: len(handled) == 40, "all are handled")
        assert (app.statistics().reconnects, app.statistics().subscriptions[name].waiting) == (0, 0)
    assert sorted(handled) == list(range(40))


ODD = field(b"deep", b"S" + long(b"?"))
"""A header that `damaged` makes unreadable: an array with a value of an unknown type."""


@pytest.fixture
def damaged(proxy: Proxy) -> str:
    """Return the URL of a broker that forwards malformed headers, as RabbitMQ does for arrays nested 65 times."""
    proxy.to_client.rewrite = lambda: lambda data: data.replace(b"\x04deepS", b"\x04deepA")
    return proxy.url


@pytest.mark.parametrize("traced", [False, True])
async def test_headers_that_cannot_be_read_are_undecodable_for_a_handler_that_reads_them(
    make_app: MakeApp, amqp_client: AsyncClient, damaged: str, name: str, traced: bool
) -> None:
    app = make_app(damaged)
    handled: list[bytes] = []

    @app.handle(bytes, queue=name, ordered_by="tenant", retry=Retry(3))
    async def handle(body: bytes, delivery: Delivery) -> None:
        if body != b"other":
            delivery.headers.get("tenant")
        handled.append(body)

    trace = field(b"traceparent", b"S" + long(b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01"))
    table = trace + ODD if traced else ODD
    async with app:
        await send_soon(damaged, "", name, (table, b"odd"), (table, b"other"), (b"", b"ordinary"))
        dead = await amqp_client.take(f"{name}.dead")
        await eventually(lambda: len(handled) == 2, "the others are handled")
        assert app.statistics().reconnects == 0
        assert app.statistics().handlers[name].retried == 0
    assert (dead.body, dead.headers["warren-dead-reason"]) == (b"odd", "undecodable")
    assert dead.headers["warren-dead-error"] == (
        "ValueError: the headers cannot be read: unknown field type '?'"
    )
    assert sorted(handled) == [b"ordinary", b"other"]


async def test_headers_that_cannot_be_read_do_not_stop_the_reader_of_a_stream(
    make_app: MakeApp, amqp_client: AsyncClient, damaged: str, name: str
) -> None:
    app = make_app(damaged)
    handled: list[tuple[bytes, int]] = []

    @app.handle(
        bytes,
        stream=name,
        reader="r",
        offset="first",
        resume=True,
        ordered_by="tenant",
        retry=Retry(1).then("10ms"),
    )
    async def handle(body: bytes, delivery: Delivery) -> None:
        handled.append((body, delivery.attempt))
        if body == b"failing" and delivery.attempt == 1:
            raise ValueError
        if body == b"reads":
            delivery.headers.get("tenant")

    async with app:
        await send_soon(damaged, "", name, (ODD, b"failing"), (ODD, b"reads"), (b"", b"ordinary"))
        await eventually(lambda: (b"ordinary", 1) in handled, "the next message is handled")
        assert app.statistics().reconnects == 0
        dead = await amqp_client.take(f"{name}.r.dead")
    assert (dead.body, dead.headers["warren-dead-reason"]) == (b"reads", "undecodable")
    assert handled == [(b"failing", 1), (b"failing", 2), (b"reads", 1), (b"ordinary", 1)]


async def test_a_returned_message_whose_headers_cannot_be_read_fails_its_own_publish(
    make_app: MakeApp, damaged: str, name: str
) -> None:
    app = make_app(damaged)
    async with app:
        with pytest.raises(Unroutable):
            await app.publish(b"", key=f"{name}.nobody", headers={"deep": "?"})
        assert app.statistics().reconnects == 0


@pytest.mark.parametrize(
    "body",
    [
        b'{"offset": -1}',
        b'{"offset": 9223372036854775808}',
        b'{"offset": true}',
        b'{"since": 1000000000000000000}',
        b'{"since": -1}',
        b'{"incarnation": -1, "mark": 7}',
        b'{"mark": "' + b"x" * 256 + b'"}',
        b"[" * 100_000,
        b"\xff",
    ],
    ids=lambda body: str(body[:30]),
)
async def test_a_position_that_is_none_does_not_stop_a_reader(
    make_app: MakeApp, amqp_client: AsyncClient, name: str, body: bytes
) -> None:
    handled: list[bytes] = []

    def app_of() -> App:
        app = make_app()

        @app.handle(bytes, stream=name, reader="r", offset="first", resume=True)
        async def handle(body: bytes) -> None:
            handled.append(body)

        return app

    async with app_of() as app:
        await app.publish(b"1", key=name)
        await eventually(lambda: handled == [b"1"], "the first message is handled")
    await amqp_client.put(f"{name}.r.position", body)
    async with app_of() as app:
        await app.publish(b"2", key=name)
        await eventually(lambda: handled == [b"1", b"2"], "the reader goes on at its position")
        assert app.statistics().reconnects == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_of_the_sdk_before_the_handler_gives_up_its_message_only(
    make_app: MakeApp, amqp_client: AsyncClient, monkeypatch: pytest.MonkeyPatch, name: str, stream: bool
) -> None:
    admit = KeyedOrdering.admit

    def failing(ordering: KeyedOrdering[Any], job: Any) -> bool:
        if job.delivery.body == b"odd":
            raise ZeroDivisionError
        return admit(ordering, job)

    monkeypatch.setattr(KeyedOrdering, "admit", failing)
    app = make_app()
    handled: list[bytes] = []
    options: dict[str, Any] = (
        {"stream": name, "reader": "r", "offset": "first"} if stream else {"queue": name}
    )

    @app.handle(bytes, ordered_by="tenant", **options)
    async def handle(body: bytes) -> None:
        handled.append(body)

    async with app:
        for body in (b"before", b"odd", b"after"):
            await app.publish(body, key=name)
        dead = await amqp_client.take(f"{name}.r.dead" if stream else f"{name}.dead")
        await eventually(lambda: len(handled) == 2, "the others are handled")
        assert app.statistics().reconnects == 0
    assert (dead.body, handled) == (b"odd", [b"before", b"after"])


@pytest.mark.parametrize(
    "attempt", [-1, 0, -(2**63), 2**31, 2**63 - 1, "3", True, [1], {"n": 1}, 1.5, None], ids=str
)
async def test_an_attempt_that_no_app_has_written_counts_as_the_first(
    make_app: MakeApp, amqp_client: AsyncClient, name: str, attempt: Any
) -> None:
    app = make_app()
    attempts: list[int] = []

    @app.handle(bytes, queue=name, retry=Retry(1).then("1ms", "2ms"))
    async def handle(body: bytes, delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        raise ValueError

    async with app:
        await amqp_client.put(name, b"", headers={"warren-attempt": attempt})
        dead = await amqp_client.take(f"{name}.dead")
    assert attempts == [1, 2, 3]
    assert dead.headers["warren-dead-reason"] == "failed"


@pytest.mark.parametrize("deaths", [-5, 2**63 - 1, -(2**63), "many", True, [1], 1.5], ids=str)
async def test_deaths_that_no_app_has_written_count_as_none(
    make_app: MakeApp, amqp_client: AsyncClient, name: str, deaths: Any
) -> None:
    app = make_app()

    @app.handle(bytes, queue=name, retry=Retry(1))
    async def handle(body: bytes) -> None:
        raise ValueError

    async with app:
        await amqp_client.put(name, b"", headers={"warren-deaths": deaths, "warren-dead-first-time": deaths})
        dead = await amqp_client.take(f"{name}.dead")
    assert dead.headers["warren-deaths"] == 1
    assert dead.headers["warren-dead-first-time"] == dead.headers["warren-dead-time"]


OWN_HEADERS = (
    b"warren-attempt", b"warren-first-published", b"warren-republished", b"warren-cause", b"warren-deaths",
    b"warren-dead-first-time", b"warren-dead-time", b"warren-dead-reason", b"warren-dead-error", b"warren-dead-queue",
    b"warren-exchange", b"warren-key", b"warren-token", b"traceparent", b"tracestate", b"baggage", b"tenant", b"x-death",
    b"x-stream-filter-value",
)  # fmt: skip
FIELDS = st.lists(
    st.tuples(st.sampled_from(OWN_HEADERS), VALUES | st.integers(60, 70).map(nested)), min_size=1, max_size=4
).map(lambda fields: b"".join(field(name, value) for name, value in fields))
"""Header tables with the headers that the SDK reads, of any type and value."""


@given(tables=st.lists(FIELDS | TABLES, min_size=1, max_size=8), stream=st.booleans())
@settings(max_examples=25)
def test_no_headers_of_another_client_hold_up_the_next_message(
    amqp_url: str, tables: Sequence[bytes], stream: bool
) -> None:
    name = f"t{uuid4().hex[:12]}"

    async def run() -> None:
        # The broker may refuse some tables, and close the connection of their publisher.
        app = App(amqp_url)
        handled: list[bytes] = []
        options: dict[str, Any] = (
            {"stream": name, "reader": "r", "offset": "first"} if stream else {"queue": f"{name}.queue"}
        )

        @app.handle(bytes, ordered_by="tenant", retry=Retry(1).then("1ms"), **options)
        async def handle(body: bytes, delivery: Delivery) -> None:
            handled.append(body)
            if body == b"odd":
                raise ZeroDivisionError(dict(delivery.headers))

        target = name if stream else f"{name}.queue"
        async with app:
            for table in tables:
                with contextlib.suppress(Exception):
                    await send_soon(amqp_url, "", target, (table, b"odd"))
            await app.publish(b"ordinary", key=target)
            await eventually(lambda: b"ordinary" in handled, "the ordinary message is handled")
            assert app.statistics().reconnects == 0
        async with async_client(amqp_url) as client:
            for item in app.topology:
                if isinstance(item, Queue):
                    await client.channel.queue_delete(item.name)

    asyncio.run(run())
