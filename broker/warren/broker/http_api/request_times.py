"""Middleware that closes connections without a request: part of each application of the HTTP library."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from aiohttp import web
from aiohttp.typedefs import Middleware

from warren.broker.http_api.open_connections import OpenConnections

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


def request_times(connections: OpenConnections) -> Middleware:
    """Return the middleware that tells the open connections when a request begins and ends."""

    @web.middleware
    async def tell(request: web.Request, handler: Handler) -> web.StreamResponse:
        # The request has none any more when the client is gone.
        transport = request.transport
        connections.begin_request(transport)
        try:
            return await handler(request)
        finally:
            connections.await_request(transport)

    return tell
