"""Web application of the API: routes, authentication, limits and the form of responses, on aiohttp."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Generator
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler as WebHandler

from warren.broker.access.audit_log import DONE, FAILED, HTTP, REFUSED, Change
from warren.broker.access.pending_decisions import DecisionPending
from warren.broker.http_api.api_error import ApiError, from_amqp, from_refusal, object_not_found
from warren.broker.http_api.call import Call, Handler, Response
from warren.broker.http_api.caller import ANYBODY, MANAGEMENT, Authenticator, Caller, parse_credentials
from warren.broker.http_api.json_body import DEFINITIONS_BODY
from warren.broker.http_api.open_connections import QUIET_LOGGER, OpenConnections
from warren.broker.http_api.page import page_files
from warren.broker.http_api.request_times import request_times
from warren.broker.http_api.routes import ROUTES, Route
from warren.broker.http_api.statistics_json import Statistics
from warren.broker.management.json_encoding import encode, encode_in_steps
from warren.broker.management.management import Management
from warren.broker.management.request import Json
from warren.broker.management.time_slices import run_in_slices
from warren.broker.model.operator_errors import OperationRefused
from warren.broker.model.rabbitmq_versions import BEHAVIOUR_BY_VERSION
from warren.wire.reply_codes import AmqpError

logger = logging.getLogger(__name__)

MOST_ANONYMOUS_BODY: Final = 65536
"""Bytes that the body of a request without a login may have: 128 strangers could fill the memory with larger ones."""
NAME: Final = re.compile(r"\{(\w+)\}")
"""Name of a part of a path, without an expression for it."""
READ_SECONDS: Final = 30.0
"""Seconds within which the body of a request has to arrive."""
RESERVED_USER_NAMES: Final = ("/api/users/bulk-delete", "/api/users/without-permissions")
"""Paths with fewer methods than the path of a user of the same name would have."""
HEADERS: Final = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "script-src 'self'; object-src 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Vary": "accept, accept-encoding, origin",
}


class _Service:
    """Answers requests: finds the caller, calls the handler of the route, and writes the response."""

    def __init__(self, management: Management, statistics: Statistics, connections: OpenConnections) -> None:
        self._management = management
        self._connections = connections
        self._statistics = statistics
        self._authenticator = Authenticator(management.node, BEHAVIOUR_BY_VERSION[management.config.compat])

    async def answer(self, request: web.Request, route: Route) -> web.StreamResponse:
        callers: list[Caller] = []
        found = await self._outcome(request, route, callers)
        audit = self._management.audit
        if audit is not None and callers and route.changes:
            status = found.status
            await audit.record(
                Change(
                    callers[0].user.name,
                    request.remote or "",
                    HTTP,
                    f"{route.method} {route.path}",
                    dict(request.match_info),
                    DONE if status < 400 else REFUSED if status < 500 else FAILED,
                )
            )
        return found if isinstance(found, web.StreamResponse) else await _send(request, found)

    async def _outcome(
        self, request: web.Request, route: Route, callers: list[Caller]
    ) -> Response | web.StreamResponse:
        """Return the response to a request.

        :param callers: gets the user, once authenticated.
        """
        role = route.role
        try:
            refuse_cross_site(request)
            refuse_form(request, route)
            if role == ANYBODY:
                caller = self._authenticator.nobody()
            else:
                caller = await self._caller(request)
                callers.append(caller)
                caller.require(MANAGEMENT)
                if role:
                    caller.require(role)
            body = await _body(request, MOST_ANONYMOUS_BODY if role == ANYBODY else route.body.bytes)
            self._connections.begin(request.transport)
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
                body,
                route.body,
            )
            await call.parse_body()
            return await _handle(route.handler, call)
        except ApiError as error:
            return _refused(error)
        except AmqpError as error:
            return _refused(from_amqp(error))
        except OperationRefused as refused:
            return _refused(from_refusal(refused))
        except (asyncio.CancelledError, web.HTTPException):
            raise
        except ConnectionError:
            # The client is gone. An error would be logged with its traceback.
            return web.Response(status=400)
        except Exception:
            logger.exception("event=http_api.request_failed method=%s path=%r", request.method, request.path)
            return _refused(ApiError(500, "internal_server_error", "see the log of the broker"))
        finally:
            self._connections.end(request.transport)

    async def _caller(self, request: web.Request) -> Caller:
        credentials = parse_credentials(request.headers.get("Authorization", ""))
        if credentials is None:
            raise web.HTTPUnauthorized(
                headers={**HEADERS, "WWW-Authenticate": 'Basic realm="Warren Management"'}, text=""
            )
        return await self._authenticator.login(request.remote or "", *credentials)


async def _handle(handler: Handler, call: Call) -> Response:
    """Call the handler of a route again until the access decisions that it needs are known."""
    while True:
        try:
            return await handler(call)
        except DecisionPending as pending:
            await asyncio.wait([pending.answered])


def refuse_cross_site(request: web.Request) -> None:
    """Refuse a change that a page of another site asks a browser for, which adds the user's credentials by itself.

    Browsers name the relation of the sites (Sec-Fetch-Site), or at least the page's own site (Origin). Other clients
    send neither.

    :raises ApiError: 403 if it is such a request.
    """
    if request.method in ("GET", "HEAD", "OPTIONS"):
        return
    relation = request.headers.get("Sec-Fetch-Site")
    origin = request.headers.get("Origin")
    if relation is not None:
        is_foreign = relation not in ("same-origin", "none")
    else:
        is_foreign = origin is not None and origin.partition("://")[2].lower() != request.host.lower()
    if is_foreign:
        raise ApiError(403, "forbidden", "the request comes from a page of another site")


def refuse_form(request: web.Request, route: Route) -> None:
    """Refuse a body of a type that a form of another site can send.

    A second line behind `refuse_cross_site`: the text of a form of type text/plain can be JSON. Forms whose text is
    encoded (application/x-www-form-urlencoded) cannot, and clients such as `curl --data` name this type for JSON. A file
    of definitions may be uploaded by a form.

    :raises ApiError: 415 if it is of such a type.
    """
    wrong = ("text/plain",) if route.body is DEFINITIONS_BODY else ("text/plain", "multipart/form-data")
    if request.body_exists and request.content_type in wrong:
        raise ApiError(415, "unsupported_media_type", "send the body as application/json")


async def _body(request: web.Request, most: int) -> bytes:
    """Read the body of a request.

    :param most: bytes that it may have.
    :raises ApiError: 413 if it is larger, 415 if it is compressed, 408 if it does not arrive in time.
    """
    if not request.can_read_body:
        return b""
    if request.content_length is not None and request.content_length > most:
        raise _too_large(most)
    # The library would decompress it: some bytes of a client would cost much time.
    encoding = request.headers.get("Content-Encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise ApiError(415, "unsupported_media_type", "the body is compressed: send it as it is")
    found = bytearray()
    try:
        async with asyncio.timeout(READ_SECONDS):
            async for piece in request.content.iter_any():
                found += piece
                if len(found) > most:
                    raise _too_large(most)
    except TimeoutError:
        raise ApiError(
            408, "request_timeout", f"the body did not arrive within {READ_SECONDS:.0f} s"
        ) from None
    # To copy 10 MB takes some milliseconds.
    await asyncio.sleep(0)
    return bytes(found)


def _too_large(most: int) -> ApiError:
    return ApiError(413, "payload_too_large", f"the body is larger than {most} bytes")


def _refused(error: ApiError) -> web.Response:
    return _json(error.status, {"error": error.error, "reason": error.reason})


def _json(status: int, value: Json) -> web.Response:
    return web.Response(
        status=status,
        body=encode(value),
        content_type="application/json",
        headers=HEADERS,
    )


async def _send(request: web.Request, response: Response) -> web.StreamResponse:
    parts = response.encoded
    if parts is None:
        if response.body is None:
            return web.Response(status=response.status, headers={**HEADERS, **response.headers})
        # In slices: definitions may have tens of thousands of objects.
        parts = await run_in_slices(encode_in_steps(response.body))
    stream = web.StreamResponse(status=response.status, headers={**HEADERS, **response.headers})
    stream.content_type = "application/json"
    stream.content_length = sum(len(part) for part in parts)
    await stream.prepare(request)
    if request.method != "HEAD":
        for part in parts:
            await stream.write(part)
    await stream.write_eof()
    return stream


def _endpoint(service: _Service, route: Route) -> WebHandler:
    async def serve(request: web.Request) -> web.StreamResponse:
        return await service.answer(request, route)

    return serve


def _refuse_method(allowed: set[str]) -> WebHandler:
    async def refuse(request: web.Request) -> web.StreamResponse:
        raise web.HTTPMethodNotAllowed(request.method, allowed)

    return refuse


def _patterns(path: str) -> tuple[str, str]:
    """Return the patterns of a route's path: with a slash at the end, too, as RabbitMQ's own page asks.

    The library's own expression for a name matches no braces, which names may have.

    In front of a slash the name of an exchange may be empty, for the default exchange: `rabbitmqadmin` asks
    `exchanges/%2F//publish`.
    """
    first, second = path, f"{path}/"
    if path.startswith(("/api/exchanges/", "/api/bindings/")):
        first, second = (
            each.replace("{exchange}/", "{exchange:[^/]*}/").replace("{source}/", "{source:[^/]*}/")
            for each in (first, second)
        )
    return NAME.sub(r"{\1:[^/]+}", first), NAME.sub(r"{\1:[^/]+}", second)


@web.middleware
async def _errors(request: web.Request, handler: WebHandler) -> web.StreamResponse:
    """Answer paths that do not exist, and methods that a path does not have, as RabbitMQ does."""
    try:
        return await handler(request)
    except web.HTTPNotFound:
        return _refused(object_not_found())
    except web.HTTPMethodNotAllowed as error:
        allow = ", ".join(sorted({*error.allowed_methods, "OPTIONS"}))
        if request.method == "OPTIONS":
            return web.Response(status=200, headers={**HEADERS, "Allow": allow})
        return web.Response(status=405, headers={**HEADERS, "Allow": allow})


def _add_routes(app: web.Application, service: _Service) -> Generator[None, None, None]:
    """Add the routes; yield after each: the library compiles a regular expression for its path."""
    for route in ROUTES:
        endpoint = _endpoint(service, route)
        for path in _patterns(route.path):
            if route.method == "GET":
                app.router.add_get(path, endpoint, allow_head=True)
            else:
                app.router.add_route(route.method, path, endpoint)
        yield
    for reserved in RESERVED_USER_NAMES:
        methods = {route.method for route in ROUTES if route.path == reserved}
        for path in _patterns(reserved):
            app.router.add_route("*", path, _refuse_method(methods))
        yield


async def start(
    management: Management, statistics: Statistics, connections: OpenConnections
) -> web.AppRunner:
    """Create the application, and return its runner, whose `server` serves sockets."""
    service = _Service(management, statistics, connections)
    app = web.Application(
        client_max_size=DEFINITIONS_BODY.bytes, middlewares=[request_times(connections), _errors]
    )
    await run_in_slices(_add_routes(app, service))
    if management.config.management_page:
        page_files.add_routes(app)
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
