"""Spans of the broker: they join the trace of a message's publisher, and their export never disturbs the broker."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from tests.support.blocking_client import Channel, Connection
from tests.support.broker_process import BrokerProcess, warren
from tests.support.in_process_broker import PATIENCE, InProcessBroker
from tests.support.metrics_scraper import Scraper
from tests.support.otlp_receiver import OtlpReceiver, ReceivedSpan
from tests.support.polling import wait_until
from tests.support.streams import consume
from warren.broker import Broker, BrokerConfig
from warren.sdk import App, Event, Telemetry

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{PARENT}-01"
UNSAMPLED = f"00-{TRACE}-{PARENT}-00"
INTERNAL = 1
ERROR = 2


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpReceiver]:
    """Receiver, to which no proxy and no variable of this machine's environment leads elsewhere."""
    for name in (
        "OTEL_SDK_DISABLED",
        "OTEL_TRACES_EXPORTER",
        "OTEL_SERVICE_NAME",
        "OTEL_RESOURCE_ATTRIBUTES",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    # An export that takes longer fails, on a busy machine too.
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "120")
    with OtlpReceiver() as running:
        yield running


def config(receiver: OtlpReceiver, *streams: str) -> BrokerConfig:
    """:param streams: value of `capture_events`"""
    return BrokerConfig(
        opentelemetry=True,
        opentelemetry_endpoint=receiver.url,
        capture_events=streams,
        handshake_timeout=PATIENCE,
        login_failure_delay=0,
        prometheus_port=0,
    )


@pytest.fixture
def traced(receiver: OtlpReceiver, tmp_path: Path) -> Iterator[InProcessBroker]:
    with InProcessBroker(tmp_path / "data", config=config(receiver)) as broker:
        yield broker


@pytest.fixture
def channel(traced: InProcessBroker) -> Iterator[Channel]:
    connection = Connection(traced.url)
    yield connection.channel()
    connection.abort()


def metrics(broker: Broker) -> dict[str, float]:
    """Return the counters of spans by name."""
    found = Scraper(f"http://{broker.prometheus_addresses[0]}").samples()
    return {name: value for (name, _), value in found.items() if name.startswith("warren_spans")}


def test_enqueue_and_delivery_join_the_trace_of_the_message(receiver: OtlpReceiver, channel: Channel) -> None:
    channel.declare("orders")
    channel.publish(
        "orders",
        b"hello",
        message_id="m1",
        correlation_id="c1",
        headers={"traceparent": SAMPLED, "tracestate": "vendor=7"},
    )
    channel.consume("orders", tag="billing")
    (message,) = channel.deliveries(1)
    channel.ack(message.tag)

    (enqueue,) = receiver.until("enqueue orders")
    (deliver,) = receiver.until("deliver orders")
    assert (enqueue.trace_id, enqueue.parent_id, enqueue.trace_state) == (TRACE, PARENT, "vendor=7")
    assert (deliver.trace_id, deliver.parent_id) == (TRACE, enqueue.span_id)
    assert (enqueue.kind, deliver.kind, enqueue.status) == (INTERNAL, INTERNAL, 0)
    shared = {
        "messaging.system": "rabbitmq",
        "messaging.destination.name": "orders",
        "messaging.rabbitmq.destination.routing_key": "orders",
        "messaging.message.id": "m1",
        "messaging.message.conversation_id": "c1",
        "messaging.message.body.size": 5,
        "warren.virtual_host": "/",
    }
    assert enqueue.attributes == {**shared, "messaging.operation.name": "enqueue"}
    assert deliver.attributes == {
        **shared,
        "messaging.operation.name": "deliver",
        "warren.redelivered": False,
        "warren.consumer_tag": "billing",
    }
    assert (enqueue.resource["service.name"], enqueue.scope) == ("warren-broker", "warren.broker")
    assert 0 < enqueue.start <= deliver.start


def test_a_message_without_a_sampled_trace_has_no_spans(receiver: OtlpReceiver, channel: Channel) -> None:
    channel.declare("q")
    for headers in ({"traceparent": UNSAMPLED}, {"traceparent": "nonsense"}, {}, {"other": SAMPLED}):
        channel.publish("q", b"", headers=headers)
    # The body is not searched.
    channel.publish("q", b"\x0btraceparentS\x00\x00\x00\x37" + SAMPLED.encode())
    channel.publish("q", b"", message_id="last", headers={"traceparent": SAMPLED})
    (only,) = receiver.until("enqueue q")
    assert only.attributes["messaging.message.id"] == "last"


def test_invalid_identities_make_no_span(receiver: OtlpReceiver, channel: Channel) -> None:
    channel.declare("q")
    for invalid in (f"00-{'0' * 32}-{PARENT}-01", f"ff-{TRACE}-{PARENT}-01", f"00-{'x' * 32}-{PARENT}-01"):
        channel.publish("q", b"", headers={"traceparent": invalid})
    channel.publish("q", b"", message_id="last", headers={"traceparent": SAMPLED})
    (only,) = receiver.until("enqueue q")
    assert only.attributes["messaging.message.id"] == "last"


def test_each_queue_of_a_fan_out_has_its_spans(receiver: OtlpReceiver, channel: Channel) -> None:
    channel.declare_exchange("x", "fanout")
    for name in ("a", "b"):
        channel.declare(name)
        channel.bind(name, "x")
    channel.publish("k", b"", exchange="x", headers={"traceparent": SAMPLED})
    spans = [receiver.until(f"enqueue {name}")[0] for name in ("a", "b")]
    assert len({span.span_id for span in spans}) == 2
    assert {span.parent_id for span in spans} == {PARENT}
    for enqueue, name in zip(spans, ("a", "b"), strict=True):
        assert channel.get(name, no_ack=True) is not None
        (deliver,) = receiver.until(f"deliver {name}")
        assert deliver.parent_id == enqueue.span_id
        assert enqueue.attributes["messaging.destination.name"] == f"x:k:{name}"


def test_a_dead_letter_stays_in_the_trace(receiver: OtlpReceiver, channel: Channel) -> None:
    channel.declare("dead")
    channel.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    channel.publish("q", b"", headers={"traceparent": SAMPLED})
    channel.consume("q")
    (message,) = channel.deliveries(1)
    channel.reject(message.tag)
    (dead_letter,) = receiver.until("dead_letter q")
    (first,) = receiver.until("enqueue q")
    (second,) = receiver.until("enqueue dead")
    assert {dead_letter.trace_id, first.trace_id, second.trace_id} == {TRACE}
    assert dead_letter.parent_id == first.span_id
    assert dead_letter.attributes["warren.reason"] == "rejected"
    assert second.parent_id == PARENT


def test_expiry_with_and_without_a_dead_letter_exchange(
    receiver: OtlpReceiver, channel: Channel, traced: InProcessBroker
) -> None:
    channel.declare("dead")
    channel.declare("kept", x_message_ttl=1000, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    channel.declare("lost", x_message_ttl=1000)
    for name in ("kept", "lost"):
        channel.publish(name, b"", headers={"traceparent": SAMPLED})
        channel.state(name)
    traced.advance(2)
    (dead_letter,) = receiver.until("dead_letter kept")
    (expire,) = receiver.until("expire lost")
    (enqueue,) = receiver.until("enqueue lost")
    assert dead_letter.attributes["warren.reason"] == expire.attributes["warren.reason"] == "expired"
    assert expire.parent_id == enqueue.span_id
    assert expire.start - enqueue.start >= 1_000_000_000, "by the broker's clock"


def test_drops_name_their_reason(receiver: OtlpReceiver, channel: Channel) -> None:
    channel.declare("full", x_max_length=1)
    channel.declare("refusing", x_max_length=1, x_overflow="reject-publish")
    for name in ("full", "full", "refusing", "refusing", "missing"):
        channel.publish(name, b"", headers={"traceparent": SAMPLED})
    (overflowed,) = receiver.until("drop full")
    refused, unroutable = receiver.until("drop amq.default", 2)
    assert (overflowed.attributes["warren.reason"], overflowed.status) == ("maxlen", 0)
    assert (refused.attributes["error.type"], refused.status) == ("refused", ERROR)
    assert (unroutable.attributes["error.type"], unroutable.parent_id) == ("unroutable", PARENT)


def test_names_of_generated_queues_are_not_in_the_names_of_spans(
    receiver: OtlpReceiver, channel: Channel
) -> None:
    name = channel.declare("")
    channel.publish(name, b"", headers={"traceparent": SAMPLED})
    (enqueue,) = receiver.until("enqueue")
    assert enqueue.attributes["messaging.destination.temporary"] is True
    assert enqueue.attributes["messaging.destination.name"] == name


def test_redelivery_after_a_restart_has_the_enqueue_span_as_parent(
    receiver: OtlpReceiver, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    with InProcessBroker(folder, config=config(receiver)) as broker, Connection(broker.url) as connection:
        channel = connection.channel()
        channel.declare("q", durable=True)
        channel.confirm()
        channel.publish("q", b"", delivery_mode=2, headers={"traceparent": SAMPLED})
        channel.settled(1)
    # The stop has exported what was left.
    (enqueue,) = receiver.named("enqueue q")
    with InProcessBroker(folder, config=config(receiver)) as broker, Connection(broker.url) as connection:
        assert connection.channel().get("q", no_ack=True) is not None
        (deliver,) = receiver.until("deliver q")
    assert deliver.parent_id == enqueue.span_id
    assert "warren.consumer_tag" not in deliver.attributes


def test_events_and_spans_are_recorded_together(receiver: OtlpReceiver) -> None:
    with (
        InProcessBroker(config=config(receiver, "warren.events")) as broker,
        Connection(broker.url) as connection,
    ):
        channel = connection.channel()
        channel.declare("q")
        channel.publish("q", b"", message_id="m", headers={"traceparent": SAMPLED})
        assert channel.get("q", no_ack=True) is not None
        receiver.until("deliver q")
        consume(channel, "warren.events", "first")
        bodies = b""
        while b'"delivered"' not in bodies:  # one batch after the other
            (batch,) = channel.deliveries(1)
            channel.ack(batch.tag)
            bodies += batch.body
        assert b'"published"' in bodies
    assert len(receiver.named("enqueue q")) == 1
    assert not receiver.named("enqueue warren.events", "deliver warren.events")


def test_a_collector_that_refuses_spans_disturbs_nobody(
    receiver: OtlpReceiver, channel: Channel, traced: InProcessBroker, caplog: pytest.LogCaptureFixture
) -> None:
    assert traced.broker is not None
    broker = traced.broker
    caplog.set_level("INFO", "warren.broker")
    receiver.status = 400
    channel.declare("q")
    channel.confirm()
    for _ in range(3):
        channel.publish("q", b"", headers={"traceparent": SAMPLED})
    channel.settled(3)
    wait_until(lambda: metrics(broker)["warren_spans_failed_total"] == 3, "the batches have failed")
    receiver.status = 200
    channel.publish("q", b"", headers={"traceparent": SAMPLED})
    receiver.until("enqueue q")
    wait_until(lambda: metrics(broker)["warren_spans_exported_total"] == 1, "the last span is counted")
    logged = [record.getMessage() for record in caplog.records]
    assert [line for line in logged if "opentelemetry" in line or "Failed to export" in line] == []
    assert sum(line.startswith("event=spans.export_failed") for line in logged) == 1
    assert sum(line.startswith("event=spans.export_resumed") for line in logged) == 1


def test_steps_beyond_the_queues_bound_are_dropped_and_counted(
    receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "10")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "5")
    receiver.answering.clear()
    with InProcessBroker(config=config(receiver)) as running, Connection(running.url) as connection:
        assert running.broker is not None
        broker = running.broker
        channel = connection.channel()
        channel.declare("q")
        channel.publish("q", b"", headers={"traceparent": SAMPLED})
        wait_until(lambda: receiver.requests == 1, "the exporter waits for the collector")
        for _ in range(100):
            channel.publish("q", b"", headers={"traceparent": SAMPLED})
        assert channel.state("q") == (101, 0), "the broker goes on"
        assert metrics(broker)["warren_spans_dropped_total"] == 90
        receiver.answering.set()
        wait_until(lambda: metrics(broker)["warren_spans_exported_total"] == 11, "the rest is exported")
    assert len(receiver.named("enqueue q")) == 11


def test_large_properties_count_against_a_bound_of_bytes() -> None:
    from warren.broker.model.capture.message_spans import MAX_PENDING_BYTES, MessageStep, StepQueue

    queue = StepQueue(1000, 500)
    large = MessageStep("enqueue", 1, b"/", b"q", b"", b"q", bytes(4 << 20), 0, 1, "", b"", False)
    for _ in range(10):
        queue.add(large)
    assert len(queue.steps) == MAX_PENDING_BYTES // (4 << 20)
    assert queue.dropped == 6
    queue.take(1)
    queue.add(large)
    assert queue.dropped == 6


@pytest.mark.processes
def test_a_broker_without_the_setting_imports_nothing_of_opentelemetry() -> None:
    code = (
        "import asyncio, sys\n"
        "from warren.broker import Broker, BrokerConfig\n"
        "async def main():\n"
        "    async with Broker(BrokerConfig()) as broker:\n"
        "        assert all(each.vhost.capture is None for each in broker.virtual_hosts.declarations.values())\n"
        "asyncio.run(main())\n"
        "print([name for name in sys.modules if name.split('.')[0] == 'opentelemetry'])\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        (
            "OTEL_TRACES_EXPORTER",
            "zipkin",
            "OTEL_TRACES_EXPORTER is 'zipkin'; the broker exports with otlp, or none",
        ),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "json", "OTEL_EXPORTER_OTLP_PROTOCOL is 'json'; it must be one of"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0", "OTEL_BSP_MAX_QUEUE_SIZE is '0'; it must be a whole number above 0"),
    ],
)
@pytest.mark.processes
def test_an_invalid_variable_stops_the_start_with_one_line(name: str, value: str, error: str) -> None:
    command = warren("broker", "--in-memory", "--port", "0", "--opentelemetry", "true")
    found = subprocess.run(command, capture_output=True, text=True, env={**os.environ, name: value})
    assert found.returncode == 2
    assert error in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(("name", "value"), [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")])
async def test_the_standard_variables_turn_it_off(
    name: str, value: str, receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    async with Broker(config(receiver)) as broker:
        assert all(each.vhost.capture is None for each in broker.virtual_hosts.declarations.values())
        assert await asyncio.to_thread(metrics, broker) == {}


class Placed(Event, exchange="orders", key="placed", audience=["billing"]):
    number: int


@pytest.mark.processes
async def test_publish_broker_and_handler_are_one_trace(
    receiver: OtlpReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An App and a broker process export to the same collector, as in production."""
    provider = TracerProvider(resource=Resource({"service.name": "shop"}))
    exporter = OTLPSpanExporter(endpoint=f"{receiver.url}/v1/traces")
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_RESOURCE_ATTRIBUTES": "deployment=test"}
    handled = asyncio.Event()
    with BrokerProcess(tmp_path / "data", "--opentelemetry", "true", env=environment) as broker:
        app = App(broker.url, telemetry=Telemetry(tracer_provider=provider))

        @app.handle(Placed, queue="billing")
        async def bill(placed: Placed) -> None:
            handled.set()

        async with app:
            await app.publish(Placed(number=1))
            await asyncio.wait_for(handled.wait(), PATIENCE)
    provider.shutdown()

    def one(name: str) -> ReceivedSpan:
        (found,) = receiver.until(name)
        return found

    publish, enqueue = one("publish orders:placed"), one("enqueue billing")
    deliver, process = one("deliver billing"), one("process orders:placed:billing")
    assert {span.trace_id for span in (publish, enqueue, deliver, process)} == {publish.trace_id}
    assert publish.parent_id == ""
    assert enqueue.parent_id == publish.span_id
    assert deliver.parent_id == enqueue.span_id
    assert process.parent_id == publish.span_id, "the creation of the message, by the semantic conventions"
    assert (publish.resource["service.name"], enqueue.resource["service.name"]) == ("shop", "warren-broker")
    assert enqueue.resource["deployment"] == "test"
