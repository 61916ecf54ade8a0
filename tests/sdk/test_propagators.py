"""Trace context and baggage in message headers: those of the global propagator, with and without a span."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import (
    Getter,
    Setter,
    TextMapPropagator,
    default_getter,
    default_setter,
)
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from tests.sdk.conftest import MakeApp
from tests.sdk.telemetry_recorder import Recorded, id_of
from tests.support.async_client import AsyncClient
from tests.support.polling import eventually
from warren.sdk import Command, Delivery

TRACE, SPAN = 0x80F198EE56343BA864FE8B2A57D3EFF7, 0xE457B5A2E4D86BD1
B3 = f"{TRACE:032x}-{SPAN:016x}-1"


class B3Propagator(TextMapPropagator):
    """The single header of B3, as opentelemetry-propagator-b3 writes it. It fails for a header that is none."""

    def extract(
        self, carrier: Any, context: Context | None = None, getter: Getter[Any] = default_getter
    ) -> Context:
        found = getter.get(carrier, "b3")
        if not found:
            return context or Context()
        trace_id, span_id, _ = found[0].split("-")
        span = SpanContext(int(trace_id, 16), int(span_id, 16), True, TraceFlags(TraceFlags.SAMPLED))
        return trace.set_span_in_context(NonRecordingSpan(span), context)

    def inject(
        self, carrier: Any, context: Context | None = None, setter: Setter[Any] = default_setter
    ) -> None:
        span = trace.get_current_span(context).get_span_context()
        if span.is_valid:
            setter.set(carrier, "b3", f"{span.trace_id:032x}-{span.span_id:016x}-1")

    @property
    def fields(self) -> set[str]:
        return {"b3"}


@pytest.fixture
def b3() -> Iterator[None]:
    """Make B3 the global propagator."""
    before = propagate.get_global_textmap()
    propagate.set_global_textmap(B3Propagator())
    yield
    propagate.set_global_textmap(before)


@pytest.mark.usefixtures("b3")
async def test_the_header_of_another_propagator_is_read_and_written_without_telemetry(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()
    seen: asyncio.Queue[SpanContext] = asyncio.Queue()

    @app.handle(bytes, queue=name)
    async def handle(body: bytes) -> None:
        seen.put_nowait(trace.get_current_span().get_span_context())
        await app.publish(b"next", key=f"{name}.dead")

    async with app:
        await amqp_client.put(name, b"", headers={"b3": B3})
        span = await asyncio.wait_for(seen.get(), 60)
        following = await amqp_client.take(f"{name}.dead")
    assert (span.trace_id, span.span_id) == (TRACE, SPAN)
    assert following.headers["b3"] == B3
    assert "traceparent" not in following.headers


@pytest.mark.usefixtures("b3")
async def test_a_span_continues_the_trace_of_another_propagator(
    traced: MakeApp, recorded: Recorded, amqp_client: AsyncClient, name: str
) -> None:
    app = traced()

    @app.handle(bytes, queue=name)
    async def handle(body: bytes) -> None: ...

    async with app:
        await amqp_client.put(name, b"", headers={"b3": B3})
        await eventually(lambda: bool(recorded.spans("process")), "it is handled")
    span = recorded.span("process")
    assert span.parent is not None
    assert (span.parent.trace_id, span.parent.span_id) == (TRACE, SPAN)


@pytest.mark.parametrize("records", [False, True])
@pytest.mark.usefixtures("b3")
async def test_a_header_that_the_propagator_cannot_read_fails_no_message(
    make_app: MakeApp, traced: MakeApp, amqp_client: AsyncClient, name: str, records: bool
) -> None:
    app = traced() if records else make_app()
    seen: asyncio.Queue[bytes] = asyncio.Queue()

    @app.handle(bytes, queue=name)
    async def handle(body: bytes) -> None:
        seen.put_nowait(body)

    async with app:
        await amqp_client.put(name, b"odd", headers={"b3": "nonsense"})
        assert await asyncio.wait_for(seen.get(), 60) == b"odd"
        assert app.statistics().handlers[name].dead_lettered == 0


@pytest.mark.parametrize("records", [False, True])
async def test_baggage_without_a_span_reaches_the_handler_and_what_it_publishes(
    make_app: MakeApp, traced: MakeApp, amqp_client: AsyncClient, name: str, records: bool
) -> None:
    class Job(Command, queue=name):
        pass

    app = traced() if records else make_app()
    seen: asyncio.Queue[tuple[object, object]] = asyncio.Queue()

    @app.handle(Job)
    async def handle(job: Job, delivery: Delivery) -> None:
        seen.put_nowait((delivery.headers.get("baggage"), baggage.get_baggage("tenant")))
        await app.publish(b"next", key=f"{name}.dead")

    async with app:
        token = context.attach(baggage.set_baggage("tenant", "a b"))
        try:
            await app.publish(Job())
        finally:
            context.detach(token)
        assert await asyncio.wait_for(seen.get(), 60) == ("tenant=a+b", "a b")
        following = await amqp_client.take(f"{name}.dead")
        assert following.headers["baggage"] == "tenant=a+b"
        await app.publish(Job())
        assert await asyncio.wait_for(seen.get(), 60) == (None, None), "each message has its own baggage"


async def test_own_baggage_does_not_hide_the_span_of_the_publish(
    traced: MakeApp, recorded: Recorded, amqp_client: AsyncClient, name: str
) -> None:
    app = traced()

    @app.handle(bytes, queue=name)
    async def handle(body: bytes) -> None: ...

    async with app:
        await app.publish(b"", key=f"{name}.dead", headers={"baggage": "tenant=b"})
        message = await amqp_client.take(f"{name}.dead")
    assert message.headers["baggage"] == "tenant=b"
    assert f"{id_of(recorded.span('publish')):016x}" in str(message.headers["traceparent"])
