"""The order service with traces: warren run traced:app"""

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from orders import app as app  # what `warren run` starts


def line(span: ReadableSpan) -> str:
    trace_id = span.context.trace_id if span.context else 0
    return f"span: {span.name} (trace {trace_id:032x})\n"


provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=line)))
trace.set_tracer_provider(provider)
