"""HTTP server of the API and of the Prometheus endpoint: listening socket, limits of connections, and the library behind it.

The library is imported when the first client connects, in a thread, so that the start and the memory of a broker that
nobody looks at stay as they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import socket
from typing import Any, Final, Protocol

from warren.broker.connection.acceptor import Acceptor, listening_sockets
from warren.broker.connection.listen_address import Address
from warren.broker.connection.tls import TlsContext
from warren.broker.http_api.open_connections import OpenConnections
from warren.broker.http_api.small_reads import SmallReads

logger = logging.getLogger(__name__)

MANAGEMENT_LIBRARY: Final = "warren.broker.http_api.application"
"""Module that makes the application of the HTTP API."""
PROMETHEUS_LIBRARY: Final = "warren.broker.http_api.prometheus.application"
"""Module that makes the application of the Prometheus endpoint."""


class SocketServer(Protocol):
    """Server of the HTTP library: calling it returns the protocol of one more connection."""

    def __call__(self) -> asyncio.Protocol: ...


class Runner(Protocol):
    """Running application of the HTTP library."""

    @property
    def server(self) -> SocketServer | None: ...

    async def cleanup(self) -> None: ...


class _Opening:
    """Accepted socket that waits for the HTTP library, or is in the TLS handshake."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        """Task that makes its transport."""

    def is_closing(self) -> bool:
        return self.task is not None and self.task.done()

    def abort(self) -> None:
        if self.task is not None:
            self.task.cancel()


class HttpServer:
    """Server of one application, the HTTP API or the Prometheus endpoint, at one or more addresses.

    :param most: connections that it may have.
    :param patience: seconds that a TLS handshake may take, and the head of a request or a pause between two.
    :param library: module whose function `start` makes the application, and returns its runner.
    :param arguments: arguments of that function; the last one, `OpenConnections`, is added to them.
    """

    def __init__(self, most: int, patience: float, library: str, *arguments: object) -> None:
        self._library = library
        self._connections = OpenConnections(most, patience)
        self._arguments = (*arguments, self._connections)
        self._acceptor: Acceptor | None = None
        self._runner: Runner | None = None
        self._starting: asyncio.Task[Runner] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._pause_logged = False

    async def open(self, address: Address, tls: TlsContext | None = None) -> list[Address]:
        """Listen at an address, and return the addresses at which connections are accepted.

        :param tls: TLS context of the address; None for a plain one.
        :raises OSError: if the address is in use or is not this machine's.
        """
        loop = asyncio.get_running_loop()
        if self._acceptor is None:
            self._acceptor = Acceptor(loop, self._wait, self._log_pause, _ignore)
        bound = []
        for listening in await listening_sockets(address.host, address.port):
            host, port = listening.getsockname()[:2]
            self._acceptor.listen(
                listening, lambda accepted, address: self._on_accepted(accepted, address, tls)
            )
            bound.append(Address(host, port))
        return bound

    async def close(self) -> None:
        """Stop listening, and close all connections. Requests in progress get no response."""
        if self._acceptor is not None:
            await self._acceptor.close()
            self._acceptor = None
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._starting is not None:
            # The thread that imports the library cannot be cancelled.
            await asyncio.gather(self._starting, return_exceptions=True)
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _wait(self) -> float:
        return 0.0 if self._connections.has_room() else 0.2

    def _count(self) -> int:
        """Return the number of open connections."""
        return len(self._connections)

    def _log_pause(self, reason: str) -> None:
        if not self._pause_logged:
            self._pause_logged = True
            logger.warning("event=http_api.accepting_paused reason=%r open=%d", reason, self._count())

    def _on_accepted(self, accepted: socket.socket, address: str, tls: TlsContext | None) -> None:
        self._pause_logged = False
        opening = _Opening()
        if not self._connections.add(opening, address):
            accepted.close()
            return
        task = opening.task = asyncio.get_running_loop().create_task(self._serve(opening, accepted, tls))
        self._tasks.add(task)
        task.add_done_callback(lambda ended: self._on_served(ended, opening, accepted))

    def _on_served(self, task: asyncio.Task[None], opening: _Opening, accepted: socket.socket) -> None:
        """Forget the task of a connection; close the socket if the task was cancelled, perhaps before it began."""
        self._tasks.discard(task)
        self._connections.discard(opening)
        if task.cancelled():
            accepted.close()

    async def _serve(self, opening: _Opening, accepted: socket.socket, tls: TlsContext | None) -> None:
        """Hand an accepted socket to the HTTP library."""
        loop = asyncio.get_running_loop()
        try:
            runner = await self._started()
            server = runner.server
            assert server is not None
            with contextlib.suppress(OSError, TimeoutError):
                transport, _ = await loop.connect_accepted_socket(
                    lambda: SmallReads(server()),
                    accepted,
                    ssl=tls.context if tls is not None else None,
                    ssl_handshake_timeout=self._connections.head_seconds if tls is not None else None,
                )
                self._connections.replace(opening, transport)
                return
            accepted.close()
        except Exception:
            accepted.close()
            logger.exception("event=http_api.connection_failed")

    async def _started(self) -> Runner:
        if self._runner is None:
            if self._starting is None:
                self._starting = asyncio.get_running_loop().create_task(self._start())
            return await asyncio.shield(self._starting)
        return self._runner

    async def _start(self) -> Runner:
        """Import the library, and start its application. After a failure, the next connection tries again."""
        try:
            module = await asyncio.get_running_loop().run_in_executor(
                None, importlib.import_module, self._library
            )
            runner: Runner = await module.start(*self._arguments)
            self._runner = runner
            return runner
        finally:
            self._starting = None


def _ignore() -> None:
    return
