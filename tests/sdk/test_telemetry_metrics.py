"""OpenTelemetry metrics, trace context and options: the semantic conventions for messaging."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from opentelemetry import propagate, trace
from opentelemetry.sdk.metrics.export import (
    Histogram,
)
from opentelemetry.trace import SpanKind

from tests.sdk.conftest import MakeApp
from tests.sdk.telemetry_recorder import Recorded, handled, id_of, linked, of
from tests.support.async_client import AsyncClient
from warren.sdk import (
    Binding,
    Command,
    DeadLetter,
    Event,
    Queue,
)
from warren.sdk.app.runtime import Runtime

# Context


async def test_trace_context_is_sent_as_w3c_headers(
    traced: MakeApp, recorded: Recorded, amqp_client: AsyncClient, name: str
) -> None:
    app = traced()
    app.declare(Queue(name))
    async with app:
        await app.publish(b"x", key=name)
        message = await amqp_client.take(name)
    context = recorded.span("publish").context
    assert context is not None
    assert str(message.headers["traceparent"]).startswith(
        f"00-{context.trace_id:032x}-{context.span_id:016x}-"
    )


async def test_the_span_of_the_user_is_the_parent(traced: MakeApp, recorded: Recorded, name: str) -> None:
    app = traced()
    app.declare(Queue(name))
    async with app:
        with recorded.tracers.get_tracer("user").start_as_current_span("order") as order:
            await app.publish(b"x", key=name)
    span = recorded.span("publish")
    assert span.parent is not None
    assert (span.parent.span_id, span.kind) == (order.get_span_context().span_id, SpanKind.PRODUCER)


async def test_a_creation_context_of_the_user_is_not_overwritten(
    traced: MakeApp, recorded: Recorded, amqp_client: AsyncClient, name: str
) -> None:
    app = traced()
    app.declare(Queue(name))
    theirs = recorded.tracers.get_tracer("user").start_span("theirs")
    headers: dict[str, str] = {}
    propagate.inject(headers, trace.set_span_in_context(theirs))
    async with app:
        await app.publish(b"x", key=name, headers=headers)
        message = await amqp_client.take(name)
    span = recorded.span("publish")
    assert message.headers["traceparent"] == headers["traceparent"]
    assert (span.kind, linked(span)) == (SpanKind.CLIENT, [theirs.get_span_context().span_id])


async def test_a_dead_letter_keeps_its_creation_context(
    traced: MakeApp, recorded: Recorded, amqp_client: AsyncClient, name: str
) -> None:
    class Charge(Command, queue=name):
        pass

    app = traced()

    @app.handle(Charge)
    async def charge(command: Charge) -> None:
        raise DeadLetter("no")

    async with app:
        await app.publish(Charge())
        await handled(app, name)
        dead = await amqp_client.take(f"{name}.dead")
    first, copy = sorted(recorded.spans("publish"), key=lambda span: span.start_time or 0)
    assert f"{id_of(first):016x}" in str(dead.headers["traceparent"])
    assert linked(copy) == [id_of(first)]


# Options


async def test_a_template_names_spans_and_metrics_for_keys_with_ids(
    make_app: MakeApp, recorded: Recorded, name: str
) -> None:
    class Moved(Event, exchange=name, key="device.1.moved", audience=[f"{name}.q"]):
        pass

    def template(exchange: str, key: str) -> str | None:
        return f"{exchange}:device.{{id}}.moved" if key.startswith("device.") else None

    app = make_app(telemetry=recorded.telemetry(template=template))
    app.publishes(Moved)
    app.declare(Binding(name, f"{name}.q", "device.#"))
    async with app:
        await app.publish(Moved())
        await app.publish(Moved(), key="device.2.moved")
    spans = recorded.spans("publish")
    assert {span.name for span in spans} == {f"publish {name}:device.{{id}}.moved"}
    assert {of(span)["messaging.destination.template"] for span in spans} == {f"{name}:device.{{id}}.moved"}
    (point,) = recorded.metric("messaging.client.sent.messages").data.data_points
    assert "messaging.destination.name" not in point.attributes


async def test_sizes_are_opt_in(make_app: MakeApp, recorded: Recorded, name: str) -> None:
    app = make_app(telemetry=recorded.telemetry(sizes=True))
    app.declare(Queue(name))
    async with app:
        await app.publish(b"12345", key=name)
    sizes = of(recorded.span("publish"))
    assert sizes["messaging.message.body.size"] == 5
    assert sizes["messaging.message.envelope.size"] > 5


# Metrics


@pytest.mark.parametrize(
    ("metric", "unit", "operations"),
    [
        ("messaging.client.operation.duration", "s", ["ack", "publish"]),
        ("messaging.process.duration", "s", ["process"]),
        ("messaging.client.sent.messages", "{message}", ["publish"]),
        ("messaging.client.consumed.messages", "{message}", ["process"]),
    ],
)
async def test_a_metric(
    traced: MakeApp,
    recorded: Recorded,
    server_attributes: Mapping[str, object],
    name: str,
    metric: str,
    unit: str,
    operations: Sequence[str],
) -> None:
    class Charge(Command, queue=name):
        pass

    app = traced()

    @app.handle(Charge)
    async def charge(command: Charge) -> None:
        pass

    async with app:
        for _ in range(3):
            await app.publish(Charge())
        await handled(app, name, 3)
    found = recorded.metric(metric)
    points = sorted(
        found.data.data_points, key=lambda point: str(point.attributes["messaging.operation.name"])
    )
    assert found.unit == unit
    types = {}
    if metric == "messaging.client.operation.duration":
        types = {
            "ack": {"messaging.operation.type": "settle"},
            "publish": {"messaging.operation.type": "send"},
        }
    assert [point.attributes for point in points] == [
        {
            "messaging.system": "rabbitmq",
            "messaging.operation.name": operation,
            "messaging.destination.name": name,
            **types.get(operation, {}),
            **server_attributes,
        }
        for operation in operations
    ]
    assert {getattr(point, "count", getattr(point, "value", 0)) for point in points} == {3}
    if isinstance(found.data, Histogram):
        bounds = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
        assert {point.explicit_bounds for point in found.data.data_points} == {bounds}


async def test_without_telemetry_no_wrapper_is_installed(make_app: MakeApp, name: str) -> None:
    """Telemetry costs nothing when it is off: publishes, handlers and settlements have no wrapper."""
    app = make_app()
    app.declare(Queue(name))
    async with app:
        runtime: Runtime = app._lifecycle.running()
        assert runtime.instruments is None
        assert runtime.sender is runtime.direct_sender is runtime.publisher
        assert runtime.caller.telemetry is None


# What is fetched, and transactions


async def test_receive(
    traced: MakeApp, recorded: Recorded, server_attributes: Mapping[str, object], name: str
) -> None:
    app = traced()
    app.declare(Queue(name))
    async with app:
        await app.publish(b"x", key=name, message_id="m1")
        message = await app.get(name)
        assert message is not None
        await message.ack()
        assert await app.get(name) is None
    got, nothing = recorded.spans("receive")
    assert (got.name, got.kind) == (f"receive {name}", SpanKind.CLIENT)
    peer = {key: of(got)[key] for key in ("network.peer.address", "network.peer.port")}
    assert of(got) == {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": "receive",
        "messaging.operation.type": "receive",
        "messaging.destination.name": name,
        "messaging.rabbitmq.destination.routing_key": name,
        "messaging.rabbitmq.message.delivery_tag": 1,
        "messaging.message.id": "m1",
        "messaging.client.id": "warren consumer",
        **server_attributes,
        **peer,
    }
    assert linked(got) == [id_of(recorded.span("publish"))] == linked(recorded.span("ack"))
    assert (linked(nothing), of(nothing)["messaging.destination.name"]) == ([], name)
    assert recorded.count("messaging.client.operation.duration", messaging_operation_name="receive") == 2
    assert recorded.count("messaging.client.consumed.messages", messaging_operation_name="receive") == 1


async def test_a_publish_of_a_transaction(
    traced: MakeApp, recorded: Recorded, amqp_client: AsyncClient, name: str
) -> None:
    app = traced()
    app.declare(Queue(name, type="classic"))
    async with app:
        async with app.transaction() as transaction:
            await transaction.publish(b"x", key=name)
        message = await amqp_client.take(name)
    assert f"{id_of(recorded.span('publish')):016x}" in str(message.headers["traceparent"])
