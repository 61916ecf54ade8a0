"""OTLP receiver: an HTTP server that decodes the spans that exporters send to it, with OpenTelemetry's own protobuf."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.support.polling import wait_until


class ReceivedSpan(NamedTuple):
    """A span as it was on the wire; identities are hexadecimal."""

    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    trace_state: str
    start: int
    end: int
    status: int
    attributes: dict[str, Any]
    resource: dict[str, Any]
    scope: str


class OtlpReceiver:
    """OTLP/HTTP receiver at a free port of the loopback address.

    :param status: status of its answers; 200 takes the spans.
    """

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.spans: list[ReceivedSpan] = []
        self.requests = 0
        self.answering = threading.Event()
        """Event without which no request is answered."""
        self.answering.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver.requests += 1
                receiver.answering.wait()
                if receiver.status == 200 and self.path == "/v1/traces":
                    receiver.spans += decoded(body)
                self.send_response(receiver.status)
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *arguments: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> OtlpReceiver:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.answering.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def named(self, *names: str) -> list[ReceivedSpan]:
        """Return the spans of some names, in the order of their start."""
        return sorted((span for span in list(self.spans) if span.name in names), key=lambda span: span.start)

    def until(self, name: str, count: int = 1) -> list[ReceivedSpan]:
        """Wait for a number of spans of one name, and return them."""
        wait_until(lambda: len(self.named(name)) >= count, f"{count} spans {name!r} of {self.spans}")
        return self.named(name)


def decoded(body: bytes) -> list[ReceivedSpan]:
    request = ExportTraceServiceRequest.FromString(body)
    return [
        ReceivedSpan(
            span.name,
            span.kind,
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            span.trace_state,
            span.start_time_unix_nano,
            span.end_time_unix_nano,
            span.status.code,
            {each.key: value_of(each.value) for each in span.attributes},
            {each.key: value_of(each.value) for each in resource.resource.attributes},
            scope.scope.name,
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def value_of(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))
