"""Publishing: each publish ends in the broker's confirm, or in an error with the outcome of the message."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aio_pika.abc import AbstractIncomingMessage

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.polling import eventually
from tests.support.processes import closed_port
from tests.support.proxy import Proxy
from tests.support.proxy_faults import Fault, FrameTrigger
from warren.sdk import (
    BatchError,
    Binding,
    Command,
    ConfigError,
    Event,
    Exchange,
    Nacked,
    PublishError,
    PublishTimeout,
    Queue,
    TransportUnavailable,
    Unroutable,
)


async def test_a_confirmed_message_is_in_its_queue_in_the_documented_wire_form(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    class OrderPlaced(Event, exchange=f"{name}.orders", key="order.placed", audience=[f"{name}.billing"]):
        order_id: str

    async with make_app() as app:
        await app.publish(OrderPlaced(order_id="42"), headers={"tenant": "a"})
        message = await amqp_client.take(f"{name}.billing")
    assert message.body == b'{"order_id":"42"}'
    message.headers.pop("x-delivery-count", None)  # the broker's own, of quorum queues
    assert message.headers == {"tenant": "a"}
    assert (message.type, message.content_type, message.delivery_mode) == (
        "order_placed",
        "application/json",
        2,
    )
    assert (message.message_id or "")[14] == "7"


async def test_an_event_without_an_audience_may_have_no_listener(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    class Seen(Event, exchange=f"{name}.seen", key="seen"):
        pass

    class Heard(Event, exchange=f"{name}.heard", key="heard", audience=[f"{name}.ears"]):
        pass

    class Needed(Event, exchange=f"{name}.seen", key="needed", mandatory=True):
        pass

    class Whispered(Heard, mandatory=False):
        pass

    async with make_app() as app:
        await app.publish(Seen())
        await app.publish(Seen(), key="another")
        await app.publish_many([Seen(), Seen()])
        async with app.transaction() as transaction:
            await transaction.publish(Seen())
        await app.publish(Heard())
        await app.publish(Whispered())
        assert (await amqp_client.take(f"{name}.ears")).type == "heard"
        await amqp_client.channel.queue_delete(f"{name}.ears")
        await app.publish(Whispered())
        with pytest.raises(Unroutable):
            await app.publish(Needed())
        with pytest.raises(Unroutable):
            await app.publish(Seen(), exchange=f"{name}.seen")
        with pytest.raises(Unroutable):
            await app.publish(b"", exchange=f"{name}.seen", key="seen")


async def test_an_unroutable_message_is_returned_with_all_that_was_sent(make_app: MakeApp, name: str) -> None:
    returned: list[Unroutable] = []
    app = make_app()
    app.on_return(returned.append)
    app.declare(Exchange(f"{name}.x"))
    async with app:
        with pytest.raises(Unroutable, match="no queue takes routing key 'nobody'") as caught:
            await app.publish(
                {"a": 1}, exchange=f"{name}.x", key="nobody", headers={"h": "v"}, message_id="m1"
            )
    error = caught.value
    assert (error.reply_code, error.reply_text, error.exchange, error.routing_key, error.body) == (
        312, "NO_ROUTE", f"{name}.x", "nobody", b'{"a":1}',
    )  # fmt: skip
    assert (error.properties["message_id"], error.properties["headers"]["h"]) == ("m1", "v")
    assert (error.outcome, error.retryable) == ("refused", False)
    assert returned == [error]


async def test_returns_are_matched_to_publishes_with_the_same_message_id(
    make_app: MakeApp, name: str
) -> None:
    app = make_app()
    app.declare(
        Exchange(f"{name}.x", type="direct"), Queue(f"{name}.q"), Binding(f"{name}.x", f"{name}.q", "known")
    )
    keys = ["known" if number % 3 else "unknown" for number in range(300)]
    async with app:
        results = await asyncio.gather(
            *(app.publish(key, exchange=f"{name}.x", key=key, message_id="same") for key in keys),
            return_exceptions=True,
        )
    assert [isinstance(result, Unroutable) for result in results] == [key == "unknown" for key in keys]
    assert all(
        "warren-token" not in error.properties["headers"]
        for error in results
        if isinstance(error, Unroutable)
    )


async def test_a_full_queue_refuses(make_app: MakeApp, name: str) -> None:
    app = make_app()
    app.declare(
        Queue(name, type="classic", dead_letter_exchange=None, max_length=1, overflow="reject-publish")
    )
    async with app:
        await app.publish(b"1", key=name)
        with pytest.raises(Nacked) as caught:
            await app.publish(b"2", key=name)
    assert (caught.value.outcome, caught.value.retryable) == ("refused", True)


async def test_a_silent_broker_ends_in_a_timeout_whose_outcome_is_unknown(
    make_app: MakeApp, proxy: Proxy, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app(proxy.url)
    app.declare(Queue(name))
    async with app:
        proxy.to_client.hold()
        with pytest.raises(PublishTimeout) as caught:
            await app.publish(b"1", key=name, timeout=0.2)
        assert (caught.value.outcome, caught.value.retryable) == ("unknown", True)
        await amqp_client.take(name)
        proxy.to_client.release()


async def test_a_full_window_ends_in_a_timeout_and_nothing_was_sent(
    make_app: MakeApp, proxy: Proxy, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app(proxy.url, window=2)
    app.declare(Queue(name))
    async with app:
        proxy.to_client.hold()
        first = [asyncio.create_task(app.publish(b"1", key=name)) for _ in range(2)]
        await eventually(lambda: app.statistics().publisher.unconfirmed == 2, "the window is full")
        with pytest.raises(PublishTimeout) as caught:
            await app.publish(b"2", key=name, timeout=0.2)
        assert caught.value.outcome == "not_sent"
        proxy.to_client.release()
        await asyncio.gather(*first)
        await app.publish(b"3", key=name)
    assert [(await amqp_client.take(name)).body for _ in range(3)] == [b"1", b"1", b"3"]


async def test_without_a_connection_a_publish_waits_and_fails_as_not_sent(
    make_app: MakeApp, proxy: Proxy, name: str
) -> None:
    app = make_app(proxy.url)
    app.declare(Queue(name))
    async with app:
        proxy.refuse()
        proxy.cut()
        # Of the connection for publishing: the consumers' may be noticed before.
        await eventually(lambda: "publisher" in app.health().waiting, "the loss is noticed")
        with pytest.raises(TransportUnavailable) as caught:
            await app.publish(b"1", key=name, timeout=0.2)
        assert (caught.value.outcome, caught.value.retryable) == ("not_sent", True)
        waiting = asyncio.create_task(app.publish(b"2", key=name))
        proxy.accept()
        await waiting


async def test_an_unreachable_broker_is_one_clear_error(make_app: MakeApp) -> None:
    with closed_port() as port:
        app = make_app(f"amqp://127.0.0.1:{port}", connect_timeout=10)
        with pytest.raises(
            TransportUnavailable, match=r"cannot connect to .*: connection refused; no broker"
        ):
            await app.start()


async def test_a_wrong_password_fails_at_once(make_app: MakeApp, amqp_url: str) -> None:
    app = make_app(amqp_url.replace("//guest:guest@", "//").replace("//", "//guest:wrong@", 1))
    with pytest.raises(TransportUnavailable, match="refused the user or password") as caught:
        await app.start()
    assert not caught.value.retryable


async def test_a_batch_error_names_the_failures(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    class Note(Command, queue=f"{name}.notes"):
        number: int

    async with make_app(window=50) as app:
        report = await app.publish_many(Note(number=number) for number in range(200))
        assert (report.total, report.confirmed, report.failures) == (200, 200, ())
        await amqp_client.holds(f"{name}.notes", 200)
        nobody = f"{name}.nobody"
        with pytest.raises(BatchError, match="2 of 2 messages were not confirmed") as caught:
            await app.publish_many([Note(number=1), Note(number=2)], key=nobody)
        assert [failure.index for failure in caught.value.report.failures] == [0, 1]
        report = await app.publish_many([Note(number=1)], key=nobody, on_error="report")
        assert isinstance(report.failures[0].error, Unroutable)


async def test_a_missing_exchange_fails_only_its_own_publishes(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()
    app.declare(Queue(name))
    async with app:
        results = await asyncio.gather(
            *(app.publish(b"good", key=name) for _ in range(20)),
            app.publish(b"bad", exchange=f"{name}.missing", key="k"),
            *(app.publish(b"good", key=name) for _ in range(20)),
            return_exceptions=True,
        )
        assert [result for result in results if result is not None] == [results[20]]
        assert isinstance(results[20], PublishError)
        assert f"no exchange '{name}.missing'" in str(results[20])
        assert (await amqp_client.drain(name)).count(b"good") >= 40


async def test_a_return_on_a_lost_connection_does_not_affect_the_next_attempt(
    make_app: MakeApp, proxy: Proxy, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app(proxy.url)
    returned: list[Unroutable] = []

    def declare(error: Unroutable) -> None:
        returned.append(error)
        app.declare(Queue(name))  # Here, since the next attempt may be a millisecond away.

    # The return has come and its confirm has not.
    with FrameTrigger(proxy.to_client, "header", Fault.CUT_AFTER) as step:
        async with app:
            app.on_return(declare)
            await app.publish(b"", key=name)
    assert step.hit
    assert len(returned) == 1
    assert (await amqp_client.take(name)).headers["warren-republished"]


async def test_a_publish_without_room_for_its_bytes_keeps_its_place(
    make_app: MakeApp, amqp_client: AsyncClient, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warren.sdk.publish.publisher_confirms.WINDOW_BYTES", 4)
    app = make_app()
    app.declare(Queue(name))
    async with app:
        # Twenty confirms, one after the other.
        await asyncio.gather(*(app.publish(b"%04d" % number, key=name, timeout=240) for number in range(20)))
    assert [(await amqp_client.take(name)).body for _ in range(20)] == [
        b"%04d" % number for number in range(20)
    ]


async def test_at_most_once_awaits_nothing(make_app: MakeApp, amqp_client: AsyncClient, name: str) -> None:
    app = make_app()
    app.declare(Queue(name))
    async with app:
        await app.publish(b"1", key=name, reliability="at_most_once")
        message = await amqp_client.take(name)
        assert message.delivery_mode == 1
        await app.publish(b"nowhere", key=f"{name}.missing", reliability="at_most_once")


@pytest.mark.parametrize("size", [0, 1, 131_063, 131_064, 131_065, 1_000_000])
async def test_bodies_of_every_size_arrive_whole(
    make_app: MakeApp, amqp_client: AsyncClient, name: str, size: int
) -> None:
    app = make_app()
    app.declare(Queue(name))
    body = bytes(number % 251 for number in range(size))
    async with app:
        await app.publish(body, key=name)
    assert (await amqp_client.take(name)).body == body


async def test_a_value_that_cannot_be_encoded_fails_only_its_own_publish(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()
    app.declare(Queue(name))
    async with app:
        with pytest.raises(ConfigError, match="cannot be written"):
            await app.publish(b"1", key=name, headers={"h": object()})
        with pytest.raises(ConfigError, match="cannot be written as JSON"):
            await app.publish({"a": object()}, key=name)
        await app.publish(b"2", key=name)
    assert (await amqp_client.take(name)).body == b"2"


async def test_a_cancelled_publish_leaves_no_trace(make_app: MakeApp, proxy: Proxy, name: str) -> None:
    app = make_app(proxy.url, window=1)
    app.declare(Queue(name))
    async with app:
        proxy.to_client.hold()
        tasks = [asyncio.create_task(app.publish(b"1", key=name)) for _ in range(5)]
        await eventually(lambda: app.statistics().publisher.unconfirmed == 1, "one is in flight")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert all(task.cancelled() for task in tasks)
        proxy.to_client.release()
        await app.publish(b"2", key=name)
        assert app.statistics().publisher.unconfirmed == 0


async def test_interrupted_messages_are_republished_marked_and_with_the_same_id(
    make_app: MakeApp, proxy: Proxy, amqp_client: AsyncClient, name: str
) -> None:
    """The broker received the messages, the confirms were lost: each arrives a second time, marked."""
    app = make_app(proxy.url)
    app.declare(Queue(name))
    async with app:
        proxy.to_client.hold()
        tasks = [
            asyncio.create_task(app.publish(str(n), key=name, message_id=f"id{n}", timeout=240))
            for n in range(50)
        ]
        first = [await amqp_client.take(name) for _ in range(50)]
        proxy.cut()
        proxy.to_client.release()
        await asyncio.gather(*tasks)
        second = [await amqp_client.take(name) for _ in range(50)]

    assert [m.headers.get("warren-republished") for m in first] == [None] * 50
    assert [m.headers.get("warren-republished") for m in second] == [True] * 50
    assert list(map(identity, first)) == list(map(identity, second))
    assert [m.body for m in second] == [str(n).encode() for n in range(50)]


def identity(message: AbstractIncomingMessage) -> tuple[Any, ...]:
    return message.body, message.message_id, message.headers["warren-first-published"]


# Two hundred confirms one after the other, each when the disk has its message.
@pytest.mark.timeout(900)
async def test_nothing_is_lost_when_connections_are_cut_in_the_middle_of_publishing(
    make_app: MakeApp, proxy: Proxy, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app(proxy.url)
    app.declare(Queue(name))
    async with app:

        async def publish(part: int) -> None:
            for number in range(40):
                await app.publish(f"{part}.{number}", key=name)

        for cut in range(5):
            proxy.to_server.cut_after(20_000 + 1_111 * cut)
            await asyncio.gather(*(publish(part) for part in range(cut * 10, cut * 10 + 10)))
        assert app.statistics().reconnects >= 5
    bodies = set(await amqp_client.drain(name))
    assert len(bodies) == 5 * 10 * 40


async def test_publishing_with_an_app_that_does_not_run_fails(make_app: MakeApp) -> None:
    app = make_app()
    with pytest.raises(ConfigError, match="the App does not run"):
        await app.publish(b"", key="q")


async def test_publishes_without_a_confirm_in_time_are_counted(
    make_app: MakeApp, proxy: Proxy, name: str
) -> None:
    app = make_app(proxy.url)
    app.declare(Queue(name))
    async with app:
        proxy.to_client.hold()
        with pytest.raises(PublishTimeout):
            await app.publish(b"1", key=name, timeout=0.1)
        assert app.statistics().publisher.timed_out == 1
        proxy.to_client.release()
        await eventually(lambda: app.statistics().publisher.unconfirmed == 0, "the confirm has come")
        assert (app.statistics().publisher.timed_out, app.statistics().publisher.confirmed) == (1, 1)
