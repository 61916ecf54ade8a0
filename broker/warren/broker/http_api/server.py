"""HTTP server of the API: its listening socket, the limits of its connections, and the HTTP library behind it.

The library is imported when the first client connects, in a thread, so that the start and the memory of a broker that
nobody looks at stay as they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import socket
from collections.abc import Coroutine
from typing import Any, Final, Protocol

from warren.broker.connection.acceptor import Acceptor, listening_sockets
from warren.broker.connection.listen_address import Address
from warren.broker.connection.tls import TlsContext
from warren.broker.http_api.statistics import Statistics
from warren.broker.management.management import Management

logger = logging.getLogger(__name__)

MOST_CONNECTIONS: Final = 128
"""HTTP connections that may be open at once; further ones wait to be accepted."""
LIBRARY: Final = "warren.broker.http_api.application"


class SocketServer(Protocol):
    """Server of the HTTP library: calling it returns the protocol of one more connection."""

    @property
    def connections(self) -> list[Any]: ...

    def __call__(self) -> asyncio.Protocol: ...


class Runner(Protocol):
    """Running application of the HTTP library."""

    @property
    def server(self) -> SocketServer | None: ...

    async def cleanup(self) -> None: ...


class HttpServer:
    """Server of the HTTP API at one or more addresses."""

    def __init__(self, management: Management, statistics: Statistics) -> None:
        self._management = management
        self._statistics = statistics
        self._acceptor: Acceptor | None = None
        self._runner: Runner | None = None
        self._starting: asyncio.Task[Runner] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._opening = 0
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
            self._acceptor.listen(listening, lambda accepted, _: self._on_accepted(accepted, tls))
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
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _wait(self) -> float:
        return 0.0 if self._count() < MOST_CONNECTIONS else 0.2

    def _count(self) -> int:
        """Return the number of open connections."""
        server = self._runner.server if self._runner is not None else None
        return self._opening + (len(server.connections) if server is not None else 0)

    def _log_pause(self, reason: str) -> None:
        if not self._pause_logged:
            self._pause_logged = True
            logger.warning("event=http_api.accepting_paused reason=%r open=%d", reason, self._count())

    def _on_accepted(self, accepted: socket.socket, tls: TlsContext | None) -> None:
        self._opening += 1
        self._pause_logged = False
        self._spawn(self._serve(accepted, tls))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, accepted: socket.socket, tls: TlsContext | None) -> None:
        """Hand an accepted socket to the HTTP library."""
        loop = asyncio.get_running_loop()
        try:
            runner = await self._started()
            server = runner.server
            assert server is not None
            with contextlib.suppress(OSError, TimeoutError):
                await loop.connect_accepted_socket(
                    server,
                    accepted,
                    ssl=tls.context if tls is not None else None,
                    ssl_handshake_timeout=10.0 if tls is not None else None,
                )
                return
            accepted.close()
        except asyncio.CancelledError:
            accepted.close()
            raise
        except Exception:
            accepted.close()
            logger.exception("event=http_api.connection_failed")
        finally:
            self._opening -= 1

    async def _started(self) -> Runner:
        if self._runner is None:
            if self._starting is None:
                self._starting = asyncio.get_running_loop().create_task(self._start())
            self._runner = await asyncio.shield(self._starting)
        return self._runner

    async def _start(self) -> Runner:
        module = await asyncio.get_running_loop().run_in_executor(None, importlib.import_module, LIBRARY)
        runner: Runner = await module.start(self._management, self._statistics)
        return runner


def _ignore() -> None:
    return
