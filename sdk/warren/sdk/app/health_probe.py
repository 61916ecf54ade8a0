"""Health probe: HTTP endpoints for liveness and readiness of an App."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from warren.sdk.app.inclusion import IncludedComponent
from warren.sdk.app.state import Health
from warren.sdk.choices import check_whole_number
from warren.sdk.errors import ConfigError

if TYPE_CHECKING:
    from warren.sdk.app.app import App

REQUEST_SECONDS: float = 5.0
REQUEST_BYTES: int = 8 * 1024
STATUS: dict[int, str] = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


class HealthProbe(IncludedComponent):
    """HTTP health probe with `GET /live` and `GET /ready`: `app.include(HealthProbe(8080))`.

    `/live` returns 200 as long as the event loop runs. `/ready` returns 200 while `app.ready` is true (the App is
    connected, the broker has accepted every consumer and does not block publishers), otherwise 503. Both bodies are
    JSON with the state, the parts that are not ready, and the reason.

    :param port: 0 selects any free port; the attribute `port` has its number while the App runs.
    :param host: interface to listen on; `0.0.0.0` if the probe comes from another host.
    :raises ConfigError: if the port is no whole number from 0 to 65,535.
    """

    def __init__(self, port: int = 8080, *, host: str = "127.0.0.1") -> None:
        check_whole_number("HealthProbe: port", port, 0, 65_535)
        self.port: int = port
        self._asked = port
        self._host = host
        self._server: ProbeServer | None = None
        super().__init__()

    @property
    def lost_without_app(self) -> str:
        return "nothing answers GET /live and /ready"

    def register(self, app: App) -> None:
        """Set the App whose health the probe serves; `app.include` calls this once."""
        super().register(app)
        self._server = ProbeServer(app.health)

    async def on_start(self) -> None:
        """Open the port for requests.

        :raises ConfigError: if the port is in use.
        """
        assert self._server is not None
        self.port = await self._server.open(self._host, self._asked)

    async def on_stop(self) -> None:
        """Stop listening."""
        assert self._server is not None
        self._server.close()


class ProbeServer:
    """HTTP server of the health probe.

    :param health: returns the current health; called for each request.
    """

    def __init__(self, health: Callable[[], Health]) -> None:
        self._health = health
        self._server: asyncio.Server | None = None

    async def open(self, host: str, port: int) -> int:
        """Listen on `port`, or on any free port if it is 0; return the number of the port.

        :param host: address of the interface to listen on.
        :raises ConfigError: if the port is in use.
        """
        try:
            self._server = await asyncio.start_server(self._answer, host, port, limit=REQUEST_BYTES)
        except OSError as error:
            raise ConfigError(
                f"the health probe cannot listen on {host}:{port}: {error.strerror or error}"
            ) from error
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Stop listening; responses in progress are completed."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(
                TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError
            ):
                async with asyncio.timeout(REQUEST_SECONDS):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._response(head))
                    await writer.drain()
        finally:
            writer.close()

    def _response(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        health = self._health()
        if method not in (b"GET", b"HEAD"):
            status = 405
        elif path == b"/live":
            status = 200
        elif path == b"/ready":
            status = 200 if health.ready else 503
        else:
            status = 404
        report = {"state": health.state.value, "waiting": health.waiting, "reason": health.reason}
        body = json.dumps(report).encode()
        lines = (
            f"HTTP/1.1 {status} {STATUS[status]}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return lines.encode() + (b"" if method == b"HEAD" else body)
