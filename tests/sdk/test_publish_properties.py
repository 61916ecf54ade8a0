"""AMQP properties of a publish: each one on the wire as a plain client reads it, and bad ones refused unsent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.polling import eventually
from warren.sdk import App, Command, ConfigError, PublishError, Queue

NOON = datetime(2026, 2, 1, 12, tzinfo=UTC)
ALL: dict[str, Any] = {
    "content_type": "application/vnd.shop+json; charset=utf-8",
    "content_encoding": "utf-8",
    "correlation_id": "c1",
    "reply_to": "answers",
    "timestamp": NOON,
    "user_id": "guest",
    "app_id": "shop",
    "priority": 7,
    "expiration": "1m",
    "headers": {"tenant": "a"},
}


async def by_publish(app: App, message: Any, options: dict[str, Any]) -> None:
    await app.publish(message, **options)


async def by_submit(app: App, message: Any, options: dict[str, Any]) -> None:
    await (await app.submit(message, **options))


async def by_many(app: App, message: Any, options: dict[str, Any]) -> None:
    await app.publish_many([message], **options)


async def by_batches(app: App, message: Any, options: dict[str, Any]) -> None:
    assert [report.total async for report in app.publish_batches([message], **options)] == [1]


async def by_transaction(app: App, message: Any, options: dict[str, Any]) -> None:
    async with app.transaction() as transaction:
        await transaction.publish(message, **options)


WAYS = [by_publish, by_submit, by_many, by_batches, by_transaction]
Way = Callable[[App, Any, dict[str, Any]], Awaitable[None]]


@pytest.mark.parametrize("way", WAYS)
async def test_every_way_to_publish_sets_every_property(
    way: Way, make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    class Ship(Command, queue=name, aliases=["ship.v1"]):
        order_id: str

    async with make_app() as app:
        await way(app, Ship(order_id="42"), {**ALL, "type": "ship.v1"})
        message = await amqp_client.take(name)
    assert message.body == b'{"order_id":"42"}'
    assert message.headers["tenant"] == "a"
    read = (message.content_type, message.content_encoding, message.type, message.correlation_id)
    assert read == ("application/vnd.shop+json; charset=utf-8", "utf-8", "ship.v1", "c1")
    assert (message.reply_to, message.user_id, message.app_id) == ("answers", "guest", "shop")
    assert message.timestamp is not None
    assert message.timestamp.timestamp() == NOON.timestamp()
    assert (message.priority, message.expiration, message.delivery_mode) == (7, 60, 2)


async def test_the_content_type_chooses_the_encoding_and_any_handler_reads_it(
    make_app: MakeApp, name: str
) -> None:
    class Ship(Command, queue=name):
        order_id: str

    app = make_app()
    seen: list[str] = []

    @app.handle(Ship)
    async def ship(message: Ship) -> None:
        seen.append(message.order_id)

    async with app:
        await app.publish(Ship(order_id="packed"), content_type="application/x-msgpack")
        await app.publish(
            {"order_id": "packed, too"}, key=name, content_type="application/msgpack", type="ship"
        )
        await app.publish('{"order_id": "text"}', key=name, content_type="application/json", type="ship")
        await eventually(lambda: len(seen) == 3, "three messages are handled")
    assert sorted(seen) == ["packed", "packed, too", "text"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"type": "other"}, "a Ship cannot have the type 'other': its type is 'ship', and its aliases are 'ship.v1'"),
        ({"content_type": "text/csv"}, "Warren encodes it as JSON or MessagePack"),
        ({"content_type": "application/json; charset=latin-1"}, "Warren sends text as UTF-8"),
        ({"content_encoding": "gzip"}, "Warren does not compress it: publish bytes"),
        ({"correlation_id": "x" * 256}, "the correlation id is longer than 255 bytes"),
        ({"reply_to": 7}, "the reply_to is 7: it must be a text"),
        ({"app_id": "\udce9"}, "the app id is no text that UTF-8 can carry"),
        ({"message_id": "i" * 256}, "the message id is longer than 255 bytes"),
        ({"timestamp": datetime(2026, 2, 1)}, "has no time zone"),
        ({"timestamp": -1}, "AMQP has no times before 1970"),
        ({"timestamp": "now"}, "it must be a datetime with a time zone, or Unix seconds"),
        ({"priority": 256}, "the priority is 256: it is from 0 to 255"),
        ({"priority": "high"}, "the priority is 'high': it is from 0 to 255"),
        ({"expiration": "soon"}, "'soon' is no duration"),
        ({"expiration": "3651d"}, "expiration='3651d' is too long: the longest is 3650d"),
        ({"expiration": timedelta.max}, "is too long: the longest is 3650d"),
        ({"expiration": 10**400}, "is too long: the longest is"),
        ({"persistent": False}, "publish it with reliability='at_most_once'"),
        ({"persistent": 2}, "persistent is 2: it must be True or False"),
        ({"headers": [("a", 1)]}, "headers is a list: it must be a mapping"),
        ({"corelation_id": "c"}, "publish has no option 'corelation_id': properties are content_type"),
    ],
)  # fmt: skip
async def test_a_bad_property_is_refused_in_one_line_before_anything_is_sent(
    options: dict[str, Any], text: str, make_app: MakeApp, name: str
) -> None:
    class Ship(Command, queue=name, aliases=["ship.v1"]):
        order_id: str

    async with make_app() as app:
        with pytest.raises(ConfigError) as refused:
            await app.publish(Ship(order_id="42"), **options)
        assert text in str(refused.value)
        assert "\n" not in str(refused.value)
        assert app.statistics().publisher.published == 0


async def test_bytes_have_any_type_and_encoding(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()
    async with app:
        await app.declare_now(Queue(name))
        await app.publish(b"\x1f\x8b", key=name, type="any", content_type="text/csv", content_encoding="gzip")
        message = await amqp_client.take(name)
    assert (message.type, message.content_type, message.content_encoding) == ("any", "text/csv", "gzip")


async def test_the_wrong_user_id_is_a_typed_error_and_other_messages_are_confirmed(
    make_app: MakeApp, name: str
) -> None:
    class Ship(Command, queue=name):
        order_id: str

    async with make_app() as app:
        with pytest.raises(PublishError) as refused:
            await app.publish(Ship(order_id="42"), user_id="mallory")
        assert "406" in str(refused.value) or "PRECONDITION_FAILED" in str(refused.value)
        assert "mallory" in str(refused.value)
        assert refused.value.outcome == "refused"
        await app.publish(Ship(order_id="43"), user_id="guest")


async def test_at_most_once_may_be_persistent(make_app: MakeApp, amqp_client: AsyncClient, name: str) -> None:
    app = make_app()
    async with app:
        await app.declare_now(Queue(name))
        await app.publish("a", key=name, reliability="at_most_once", persistent=True)
        await app.publish("b", key=name, reliability="at_most_once", persistent=False)
        await app.publish("c", key=name, reliability="at_most_once", expiration=timedelta(minutes=1))
        taken = [await amqp_client.take(name) for _ in range(3)]
    assert [(message.body, message.delivery_mode) for message in taken] == [(b"a", 2), (b"b", 1), (b"c", 1)]
