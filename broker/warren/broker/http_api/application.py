"""Web application of the API: routes, authentication, limits and the form of responses, on aiohttp."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Final

from aiohttp import web

from warren.broker.http_api.api_error import ApiError, from_amqp, from_refusal, object_not_found
from warren.broker.http_api.call import Call, Handler, Response
from warren.broker.http_api.caller import ANYBODY, MANAGEMENT, Authenticator, Caller, parse_basic
from warren.broker.http_api.routes import ROUTES
from warren.broker.http_api.statistics import Statistics
from warren.broker.management.management import Management
from warren.broker.management.request import Json
from warren.broker.model.operator_errors import OperationRefused
from warren.broker.model.rabbitmq_versions import BEHAVIOUR_BY_VERSION
from warren.wire.reply_codes import AmqpError

logger = logging.getLogger(__name__)

MOST_BODY: Final = 10_000_000
"""Largest body of a request in bytes; RabbitMQ's default, too. Definitions may have as much."""
READ_SECONDS: Final = 30.0
"""Seconds within which the body of a request has to arrive."""
HEADERS: Final = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "script-src 'self'; object-src 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Vary": "accept, accept-encoding, origin",
}


class _Service:
    """Answers requests: finds the caller, calls the handler of the route, and writes the response."""

    def __init__(self, management: Management, statistics: Statistics) -> None:
        self._management = management
        self._statistics = statistics
        self._authenticator = Authenticator(management.node, BEHAVIOUR_BY_VERSION[management.config.compat])

    async def answer(self, request: web.Request, handler: Handler, role: str) -> web.StreamResponse:
        try:
            if role == ANYBODY:
                caller = self._authenticator.nobody()
            else:
                caller = await self._caller(request)
                caller.require(MANAGEMENT)
                if role:
                    caller.require(role)
            call = Call(
                self._management,
                self._statistics,
                self._authenticator,
                request.remote or "",
                caller,
                request.method,
                request.match_info,
                request.query,
                request.headers,
                await _body(request),
            )
            response = await handler(call)
        except ApiError as error:
            return _refused(error)
        except AmqpError as error:
            return _refused(from_amqp(error))
        except OperationRefused as refused:
            return _refused(from_refusal(refused))
        except (asyncio.CancelledError, web.HTTPException, ConnectionError):
            raise
        except Exception:
            logger.exception("event=http_api.request_failed method=%s path=%r", request.method, request.path)
            return _refused(ApiError(500, "internal_server_error", "see the log of the broker"))
        return await _send(request, response)

    async def _caller(self, request: web.Request) -> Caller:
        credentials = parse_basic(request.headers.get("Authorization", ""))
        if credentials is None:
            raise web.HTTPUnauthorized(
                headers={**HEADERS, "WWW-Authenticate": 'Basic realm="Warren Management"'}, text=""
            )
        return await self._authenticator.login(request.remote or "", *credentials)


async def _body(request: web.Request) -> bytes:
    if not request.can_read_body:
        return b""
    if request.content_length is not None and request.content_length > MOST_BODY:
        raise _too_large()
    try:
        async with asyncio.timeout(READ_SECONDS):
            return await request.read()
    except TimeoutError:
        raise ApiError(
            408, "request_timeout", f"the body did not arrive within {READ_SECONDS:.0f} s"
        ) from None
    except web.HTTPRequestEntityTooLarge:
        raise _too_large() from None


def _too_large() -> ApiError:
    return ApiError(413, "payload_too_large", f"the body is larger than {MOST_BODY} bytes")


def _refused(error: ApiError) -> web.Response:
    return _json(error.status, {"error": error.error, "reason": error.reason}, {})


def _json(status: int, value: Json, headers: dict[str, str]) -> web.Response:
    return web.Response(
        status=status,
        body=encode(value),
        content_type="application/json",
        headers={**HEADERS, **headers},
    )


def encode(value: Json) -> bytes:
    """Encode JSON as RabbitMQ sends it: without spaces, in UTF-8. Names that are not UTF-8 keep `?` for each such byte."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")


async def _send(request: web.Request, response: Response) -> web.StreamResponse:
    if response.encoded is None:
        if response.body is None:
            return web.Response(status=response.status, headers={**HEADERS, **response.headers})
        return _json(response.status, response.body, response.headers)
    stream = web.StreamResponse(status=response.status, headers={**HEADERS, **response.headers})
    stream.content_type = "application/json"
    stream.content_length = sum(len(part) for part in response.encoded)
    await stream.prepare(request)
    if request.method != "HEAD":
        for part in response.encoded:
            await stream.write(part)
    await stream.write_eof()
    return stream


def _endpoint(
    service: _Service, handler: Handler, role: str
) -> Callable[[web.Request], asyncio.Future[web.StreamResponse]]:
    async def serve(request: web.Request) -> web.StreamResponse:
        return await service.answer(request, handler, role)

    return serve  # type: ignore[return-value]


@web.middleware
async def _errors(request: web.Request, handler: object) -> web.StreamResponse:
    """Answer paths that do not exist, and methods that a path does not have, as RabbitMQ does."""
    try:
        found: web.StreamResponse = await handler(request)  # type: ignore[operator]
    except web.HTTPNotFound:
        return _refused(object_not_found())
    except web.HTTPMethodNotAllowed as error:
        allow = ", ".join(sorted({*error.allowed_methods, "OPTIONS"}))
        if request.method == "OPTIONS":
            return web.Response(status=200, headers={**HEADERS, "Allow": allow})
        return web.Response(status=405, headers={**HEADERS, "Allow": allow})
    return found


async def start(management: Management, statistics: Statistics) -> web.AppRunner:
    """Create the application, and return its runner, whose `server` serves sockets."""
    service = _Service(management, statistics)
    app = web.Application(client_max_size=MOST_BODY, middlewares=[_errors])
    for route in ROUTES:
        endpoint = _endpoint(service, route.handler, route.role)
        # With a slash at the end, too, as RabbitMQ's own page asks.
        for path in (route.path, f"{route.path}/"):
            if route.method == "GET":
                app.router.add_get(path, endpoint, allow_head=True)
            else:
                app.router.add_route(route.method, path, endpoint)
    runner = web.AppRunner(
        app, access_log=None, handle_signals=False, keepalive_timeout=75.0, lingering_time=2.0
    )
    await runner.setup()
    return runner
