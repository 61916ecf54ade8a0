"""OpenTelemetry spans: the semantic conventions for messaging, with attributes and links of each operation."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import SpanKind, StatusCode

from tests.sdk.conftest import MakeApp
from tests.sdk.telemetry_recorder import Recorded, handled, id_of, linked, of
from tests.sdk.test_invalid_utf8 import FLAGS, NO_TEXT, raw, send
from tests.support.async_client import AsyncClient
from tests.support.polling import eventually
from warren.sdk import (
    Binding,
    Command,
    DeadLetter,
    Delivery,
    Event,
    Exchange,
    PublishError,
    RemoteError,
    Request,
    Requeue,
    Telemetry,
    Unroutable,
)

# Spans


async def test_publish(
    traced: MakeApp, recorded: Recorded, server_attributes: Mapping[str, object], name: str
) -> None:
    class Placed(Event, exchange=name, key="order.placed", audience=[f"{name}.q"]):
        pass

    async with traced() as app:
        await app.publish(Placed(), message_id="m1")
    span = recorded.span("publish")
    assert (span.name, span.kind) == (f"publish {name}:order.placed", SpanKind.PRODUCER)
    peer = {key: of(span)[key] for key in ("network.peer.address", "network.peer.port")}
    assert peer["network.peer.port"] == server_attributes["server.port"]
    assert of(span) == {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": f"{name}:order.placed",
        "messaging.rabbitmq.destination.routing_key": "order.placed",
        "messaging.message.id": "m1",
        "messaging.client.id": "warren publisher",
        **server_attributes,
        **peer,
    }


@pytest.mark.parametrize(
    ("exchange", "key", "destination"),
    [("{x}", "", "{x}"), ("", "{x}.q", "{x}.q"), ("{x}", "a.b", "{x}:a.b")],
)
async def test_publish_span_has_its_destination(
    traced: MakeApp,
    recorded: Recorded,
    amqp_client: AsyncClient,
    name: str,
    exchange: str,
    key: str,
    destination: str,
) -> None:
    fanout = await amqp_client.channel.declare_exchange(name, "fanout", auto_delete=True)
    queue = await amqp_client.channel.declare_queue(f"{name}.q", exclusive=True)
    await queue.bind(fanout)
    async with traced() as app:
        await app.publish(b"x", exchange=exchange.format(x=name), key=key.format(x=name))
    span = recorded.span("publish")
    assert of(span)["messaging.destination.name"] == destination.format(x=name)
    assert of(span).get("messaging.rabbitmq.destination.routing_key", "") == key.format(x=name)


async def test_publish_to_no_exchange_with_no_key(traced: MakeApp, recorded: Recorded) -> None:
    async with traced() as app:
        with pytest.raises(Unroutable):
            await app.publish(b"x", exchange="", key="")
    assert of(recorded.span("publish"))["messaging.destination.name"] == "amq.default"


async def test_a_publish_that_fails(traced: MakeApp, recorded: Recorded, name: str) -> None:
    async with traced() as app:
        with pytest.raises(Unroutable):
            await app.publish(b"x", key=name)
    span = recorded.span("publish")
    assert (of(span)["error.type"], span.status.status_code) == ("no-route", StatusCode.ERROR)
    assert recorded.count("messaging.client.sent.messages", error_type="no-route") == 1


async def test_a_publish_to_a_missing_exchange(traced: MakeApp, recorded: Recorded, name: str) -> None:
    async with traced() as app:
        with pytest.raises(PublishError) as refused:
            await app.publish(b"x", exchange=name, key="x")
    assert refused.value.reply_code == 404
    assert of(recorded.span("publish"))["error.type"] == "not-found"
    assert recorded.count("messaging.client.operation.duration", error_type="not-found") == 1


async def test_process(
    traced: MakeApp, recorded: Recorded, server_attributes: Mapping[str, object], name: str
) -> None:
    class Placed(Event, exchange=name, key="order.placed"):
        pass

    app = traced()

    @app.handle(Placed, queue=f"{name}.q")
    async def placed(event: Placed) -> None:
        pass

    async with app:
        await app.publish(Placed(), message_id="m1")
        await handled(app, f"{name}.q")
    span, publish = recorded.span("process"), recorded.span("publish")
    assert (span.name, span.kind) == (f"process {name}:order.placed:{name}.q", SpanKind.CONSUMER)
    assert of(span) == {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": f"{name}:order.placed:{name}.q",
        "messaging.rabbitmq.destination.routing_key": "order.placed",
        "messaging.rabbitmq.message.delivery_tag": 1,
        "messaging.message.id": "m1",
        "messaging.client.id": "warren consumer",
        **server_attributes,
    }
    assert linked(span) == [id_of(publish)]
    assert span.parent is not None
    assert span.parent.span_id == id_of(publish)


async def test_a_queue_that_is_its_own_key_is_named_once(
    traced: MakeApp, recorded: Recorded, name: str
) -> None:
    class Charge(Command, queue=name):
        pass

    app = traced()

    @app.handle(Charge)
    async def charge(command: Charge) -> None:
        pass

    async with app:
        await app.publish(Charge())
        await handled(app, name)
    assert recorded.span("process").name == f"process {name}"
    assert recorded.span("ack").name == f"ack {name}"


@pytest.mark.parametrize(
    ("raised", "error", "operation"),
    [
        (KeyError("x"), "KeyError", "ack"),
        (DeadLetter("no"), "DeadLetter", "ack"),
        (RemoteError("code", "text"), "RemoteError", "ack"),
    ],
    ids=["failure", "dead letter", "remote error"],
)
async def test_a_process_that_fails(
    traced: MakeApp, recorded: Recorded, name: str, raised: Exception, error: str, operation: str
) -> None:
    class Charge(Command, queue=name):
        pass

    app = traced()

    @app.handle(Charge)
    async def charge(command: Charge) -> None:
        raise raised

    async with app:
        await app.publish(Charge())
        await handled(app, name)
    span = recorded.span("process")
    assert (of(span)["error.type"], span.status.status_code) == (error, StatusCode.ERROR)
    assert recorded.count("messaging.process.duration", error_type=error) == 1
    assert len(recorded.spans(operation)) == 1


async def test_settle(
    traced: MakeApp, recorded: Recorded, server_attributes: Mapping[str, object], name: str
) -> None:
    """`ack` after the handler, `reject` for requeued messages, `nack` for messages that were not started."""

    class Charge(Command, queue=name):
        how: str = ""

    app = traced(grace=0.0)
    running = asyncio.Event()

    @app.handle(Charge, concurrency=1)
    async def charge(command: Charge, delivery: Delivery) -> None:
        if command.how == "requeue" and not delivery.redelivered:
            raise Requeue
        if command.how == "wait":
            running.set()
            await asyncio.Event().wait()

    async with app:
        await app.publish(Charge())
        await app.publish(Charge(how="requeue"))
        await handled(app, name, 2)
        await app.publish(Charge(how="wait"))
        await app.publish(Charge())
        await running.wait()
        await eventually(lambda: app.statistics().subscriptions[name].waiting == 1, "one waits")
    (first, _), rejected, returned = recorded.spans("ack"), recorded.span("reject"), recorded.spans("nack")
    assert len(returned) == 2
    assert (first.name, first.kind) == (f"ack {name}", SpanKind.CLIENT)
    assert linked(first) == [id_of(recorded.spans("publish")[0])]
    peer = {key: of(first)[key] for key in ("network.peer.address", "network.peer.port")}
    assert of(first) == {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": "ack",
        "messaging.operation.type": "settle",
        "messaging.destination.name": name,
        "messaging.rabbitmq.destination.routing_key": name,
        "messaging.rabbitmq.message.delivery_tag": 1,
        "messaging.message.id": of(first)["messaging.message.id"],
        "messaging.client.id": "warren consumer",
        **server_attributes,
        **peer,
    }
    assert {of(span)["messaging.operation.type"] for span in (rejected, *returned)} == {"settle"}
    assert recorded.count("messaging.client.operation.duration", messaging_operation_name="ack") == 2


async def test_a_batch_is_a_create_for_each_and_one_send(
    traced: MakeApp, recorded: Recorded, name: str
) -> None:
    class Charge(Command, queue=name):
        pass

    app = traced()

    @app.handle(Charge)
    async def charge(command: Charge) -> None:
        pass

    async with app:
        await app.publish_many([Charge() for _ in range(3)])
        await handled(app, name, 3)
    send, creates = recorded.span("publish"), recorded.spans("create")
    assert [(span.name, span.kind) for span in creates] == [(f"create {name}", SpanKind.PRODUCER)] * 3
    assert {of(span)["messaging.operation.type"] for span in creates} == {"create"}
    assert len({of(span)["messaging.message.id"] for span in creates}) == 3
    assert (send.name, send.kind) == (f"publish {name}", SpanKind.CLIENT)
    assert (of(send)["messaging.operation.type"], of(send)["messaging.batch.message_count"]) == ("send", 3)
    assert linked(send) == [id_of(span) for span in creates]
    assert sorted(id for span in recorded.spans("process") for id in linked(span)) == sorted(linked(send))
    assert recorded.count("messaging.client.sent.messages") == 3
    assert recorded.count("messaging.client.operation.duration", messaging_operation_name="publish") == 1


async def test_create_spans_can_be_switched_off(make_app: MakeApp, recorded: Recorded, name: str) -> None:
    class Charge(Command, queue=name):
        pass

    app = make_app(telemetry=recorded.telemetry(create_spans=False))

    @app.handle(Charge)
    async def charge(command: Charge) -> None:
        pass

    async with app:
        await app.publish_many([Charge() for _ in range(2)])
        await handled(app, name, 2)
    assert recorded.spans("create") == []
    send = recorded.span("publish")
    assert [linked(span) for span in recorded.spans("process")] == [[id_of(send)]] * 2


async def test_a_call_is_two_conversations_of_one_id(
    traced: MakeApp, recorded: Recorded, server_attributes: Mapping[str, object], name: str
) -> None:
    class Ask(Request[int], queue=name):
        pass

    app = traced()

    @app.handle(Ask)
    async def ask(request: Ask) -> int:
        return 1

    async with app:
        await app.call(Ask())
        await handled(app, name)
    request, reply = sorted(recorded.spans("publish"), key=lambda span: span.start_time or 0)
    asked, answered = sorted(recorded.spans("process"), key=lambda span: span.start_time or 0)
    assert (
        len({of(span)["messaging.message.conversation_id"] for span in (request, reply, asked, answered)})
        == 1
    )
    assert linked(asked) == [id_of(request)]
    assert linked(answered) == [id_of(reply)]
    for span in (reply, answered):
        assert (of(span)["messaging.destination.temporary"], of(span)["messaging.destination.anonymous"]) == (
            True,
            True,
        )
        assert (
            span.name.split()[1]
            == f"{server_attributes['server.address']}:{server_attributes['server.port']}"
        )


async def test_a_failing_template_affects_no_message(
    make_app: MakeApp, recorded: Recorded, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(telemetry=recorded.telemetry(template=lambda exchange, key: {}[key]))
    seen: list[bytes] = []

    @app.handle(bytes, queue=name, concurrency=1)
    async def take(body: bytes) -> None:
        seen.append(body)

    async with app:
        await app.publish_many([b"1", b"2"], key=name)
        await eventually(lambda: app.statistics().subscriptions[name].acknowledged == 2, "both are handled")
    assert seen == [b"1", b"2"]
    assert caplog.text.count("event=telemetry.destination_template_failed") == 1


async def test_a_settlement_is_sent_although_its_span_fails(make_app: MakeApp, name: str) -> None:
    class OnlyHandlings(Sampler):
        def should_sample(
            self, parent_context: Any, trace_id: int, name: str, *others: Any, **more: Any
        ) -> SamplingResult:
            if name.startswith("ack "):
                raise KeyError(name)
            return SamplingResult(Decision.DROP)

        def get_description(self) -> str:
            return "fails"

    app = make_app(telemetry=Telemetry(tracer_provider=TracerProvider(OnlyHandlings())))
    seen: list[bytes] = []

    @app.handle(bytes, queue=name, concurrency=1)
    async def take(body: bytes) -> None:
        seen.append(body)

    async with app:
        await app.publish_many([b"1", b"2"], key=name)
        await eventually(lambda: app.statistics().subscriptions[name].acknowledged == 2, "both are settled")
    assert seen == [b"1", b"2"]


async def test_texts_that_are_not_utf8_are_replaced_in_spans(
    traced: MakeApp, recorded: Recorded, amqp_url: str, name: str
) -> None:
    """An exporter that cannot encode one span loses all that it exports with it."""
    app = traced()
    app.declare(Exchange(f"{name}.x", type="fanout"), Binding(f"{name}.x", name))

    @app.handle(bytes, queue=name)
    async def handle(body: bytes) -> None: ...

    async with app:
        await asyncio.to_thread(
            send, amqp_url, f"{name}.x", NO_TEXT, b"odd", FLAGS["message_id"], raw(NO_TEXT)
        )
        await eventually(lambda: app.statistics().subscriptions[name].acknowledged == 1, "it is dead")
    spans = [*recorded.spans("process"), *recorded.spans("ack"), *recorded.spans("publish")]
    assert len(spans) == 3
    for span in spans:
        assert of(span)["messaging.message.id"] == "caf\ufffd \ufffd"
        for text in (span.name, *map(str, of(span).values())):
            text.encode()
