"""Web application of the Prometheus endpoint: its paths and their parameters, on aiohttp."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Generator, Iterable
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler

from warren.broker.http_api.open_connections import QUIET_LOGGER, OpenConnections
from warren.broker.http_api.prometheus.exporter import Exporter
from warren.broker.http_api.prometheus.exposition import CONTENT_TYPE, AnyFamily, encode_in_steps
from warren.broker.http_api.prometheus.object_metrics import Selection
from warren.broker.http_api.request_times import request_times
from warren.broker.management.management import Management
from warren.broker.management.statistics.collector import Collector
from warren.broker.management.time_slices import SLICE_SECONDS, run_in_slices
from warren.core.name_pattern import InvalidPattern, NamePattern

logger = logging.getLogger(__name__)

MOST_PATTERN: Final = 2000
"""Most characters of the regular expression `queue`; RabbitMQ's bound, too."""


class _Endpoint:
    """Answers the requests to the paths of one broker."""

    def __init__(self, exporter: Exporter) -> None:
        self._exporter = exporter

    async def aggregated(self, request: web.Request) -> web.StreamResponse:
        return await _send(request, self._exporter.aggregated())

    async def per_object(self, request: web.Request) -> web.StreamResponse:
        return await _send(request, self._exporter.per_object())

    async def detailed(self, request: web.Request) -> web.StreamResponse:
        vhosts = request.query.getall("vhost", None)
        chosen = Selection(
            None if vhosts is None else frozenset(vhosts),
            _matcher(request.query.getall("queue", [])),
        )
        return await _send(request, self._exporter.detailed(set(request.query.getall("family", [])), chosen))


def _matcher(patterns: list[str]) -> Callable[[str], bool]:
    """Return the function that chooses queues by name.

    :raises HTTPBadRequest: for more than one regular expression, or one that is too long or invalid.
    """
    if len(patterns) > 1:
        raise web.HTTPBadRequest(text="queue may be given once only")
    if not patterns or not patterns[0]:
        return lambda _: True
    if len(patterns[0]) > MOST_PATTERN:
        raise web.HTTPBadRequest(
            text=f"the regular expression queue is longer than {MOST_PATTERN} characters"
        )
    try:
        return NamePattern(patterns[0]).found_in
    except InvalidPattern as reason:
        raise web.HTTPBadRequest(text=f"the regular expression queue is invalid: {reason}") from None


async def _send(request: web.Request, work: Generator[None, None, Iterable[AnyFamily]]) -> web.StreamResponse:
    """Collect the families, then encode and send them, both in slices."""
    try:
        families = await run_in_slices(work)
    except (asyncio.CancelledError, web.HTTPException):
        raise
    except Exception:
        logger.exception("event=prometheus.request_failed path=%r", request.path)
        return web.Response(status=500, text="see the log of the broker")
    response = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE})
    await response.prepare(request)
    if request.method != "HEAD":
        end = time.monotonic() + SLICE_SECONDS
        for part in encode_in_steps(families):
            await response.write(part)
            if time.monotonic() >= end:
                await asyncio.sleep(0)
                end = time.monotonic() + SLICE_SECONDS
    await response.write_eof()
    return response


async def start(management: Management, collector: Collector, connections: OpenConnections) -> web.AppRunner:
    """Create the application, and return its runner, whose `server` serves sockets."""
    endpoint = _Endpoint(Exporter(management, collector))

    @web.middleware
    async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
        connections.begin(request.transport)
        try:
            return await handler(request)
        finally:
            connections.end(request.transport)

    app = web.Application(middlewares=[request_times(connections), count])
    for path, handler in (
        ("/metrics", endpoint.aggregated),
        ("/metrics/per-object", endpoint.per_object),
        ("/metrics/detailed", endpoint.detailed),
    ):
        app.router.add_get(path, handler, allow_head=True)
    runner = web.AppRunner(
        app,
        access_log=None,
        handle_signals=False,
        # By default the library unpacks a compressed body as it arrives, even if the request is refused.
        auto_decompress=False,
        keepalive_timeout=connections.head_seconds,
        lingering_time=2.0,
        logger=QUIET_LOGGER,
    )
    await runner.setup()
    return runner
