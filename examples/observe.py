"""Observability: OpenTelemetry traces and metrics, a JSON log, and the statistics of an App.

The broker runs in this process unless AMQP_URL names another. Needs opentelemetry-sdk.
"""

import asyncio
import logging

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from warren.sdk import App, Command, JsonLines, Telemetry

spans, metrics = InMemorySpanExporter(), InMemoryMetricReader()  # in production: exporters to a collector
tracers = TracerProvider()
tracers.add_span_processor(SimpleSpanProcessor(spans))

app = App(telemetry=Telemetry(tracer_provider=tracers, meter_provider=MeterProvider([metrics])))
done = asyncio.Event()


class Charge(Command, queue="charges"):
    order_id: str


@app.handle(Charge)
async def charge(command: Charge) -> None:
    done.set()


async def main() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())  # one JSON object per line, with trace_id and span_id
    logging.getLogger("warren").addHandler(handler)

    async with app:
        await app.publish(Charge(order_id="42"))
        await done.wait()
        publisher = app.statistics().publisher
        print(f"confirmed: {publisher.confirmed}, unconfirmed: {publisher.unconfirmed}")

    finished = spans.get_finished_spans()
    print("spans:", sorted(span.name for span in finished))
    print("in one trace:", len({span.context.trace_id for span in finished if span.context}) == 1)


if __name__ == "__main__":
    asyncio.run(main())
