"""Control socket: a Unix socket with mode 0600 that accepts requests and sends replies, each one line of JSON.

On systems without Unix sockets it is a port of the loopback interface (`control_endpoint`), and the first line of each
connection is the secret that the file at the socket's path holds.

A request is `{"verb": NAME, "arguments": {...}}`. Its reply is `{"result": VALUE}`, or
`{"error": ONE LINE, "status": EXIT STATUS}`. A connection may send any number of requests, one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

from warren.broker.connection.acceptor import Acceptor
from warren.broker.management.json_encoding import decode, encode_in_steps
from warren.broker.management.request import Json, Request, RequestRefused
from warren.broker.management.time_slices import run_in_slices
from warren.broker.model import operator_errors
from warren.broker.model.broker_events import acting_as
from warren.core.control_endpoint import (
    LOOPBACK,
    connect,
    read_loopback_endpoint,
    short_address,
    uses_unix_socket,
    write_loopback_endpoint,
)
from warren.core.errors import ExitStatus
from warren.core.operating_system.portable_switch import offered
from warren.core.operating_system.sockets import UNIX_FAMILY, peer_process

logger = logging.getLogger(__name__)

REQUEST_LIMIT: Final = 32 * 1024 * 1024
"""Largest request in bytes: enough for the definitions of about 100,000 queues."""
MAX_CONNECTIONS: Final = 32
"""Control connections that may be open at once; further ones are refused."""
IDLE_SECONDS: Final = 60.0
"""Seconds that a connection may stay idle between requests, or leave a reply unread, before it is closed."""

PROBE_SECONDS: Final = 1.0
"""Seconds in which a running broker accepts the connection that finds out whether it runs."""

_set_mode: Final[Any] = offered("os", "fchmod")

PerformVerb: TypeAlias = Callable[[str, Request, str], Awaitable[Json]]
"""Function that performs a verb with its arguments and returns the result. The last argument names the client."""


class ControlSocket:
    """Server of the control socket, for requests of operators.

    :param perform: performs the verb of a request with its arguments; its result is the reply.
    """

    def __init__(self, perform: PerformVerb) -> None:
        self._perform = perform
        self._acceptor: Acceptor | None = None
        self._path: Path | None = None
        self._secret: str | None = None
        """Secret with which each connection begins; None for a Unix socket, whose permissions protect it."""
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._pause_logged = False
        self._opening: set[asyncio.Task[tuple[asyncio.Transport, asyncio.StreamReaderProtocol]]] = set()

    async def open(self, path: Path) -> None:
        """Listen at a path. A socket that a stopped broker left there is replaced.

        :raises OSError: if the socket cannot be created, or a running process listens there
        """
        self._acceptor = Acceptor(asyncio.get_running_loop(), _accept_always, self._log_pause, _ignore)
        if uses_unix_socket(path):
            self._acceptor.listen(bind_socket(path), self._on_accepted)
        else:
            _refuse_second_broker(path)
            sock = socket.create_server((LOOPBACK, 0), backlog=MAX_CONNECTIONS)
            self._acceptor.listen(sock, self._on_accepted)
            self._secret = write_loopback_endpoint(path, sock.getsockname()[1]).secret
        self._path = path

    async def close(self) -> None:
        """Stop listening, and close all connections. A request in progress gets no reply."""
        acceptor, self._acceptor = self._acceptor, None
        if acceptor is None:
            return
        await acceptor.close()
        tasks = list(self._open)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _on_accepted(self, accepted: socket.socket, _: str) -> None:
        loop = asyncio.get_running_loop()
        self._pause_logged = False

        def protocol() -> asyncio.StreamReaderProtocol:
            return asyncio.StreamReaderProtocol(asyncio.StreamReader(REQUEST_LIMIT, loop), self._accept)

        task = asyncio.ensure_future(loop.connect_accepted_socket(protocol, accepted))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def _log_pause(self, reason: str) -> None:
        if not self._pause_logged:
            self._pause_logged = True
            logger.warning("event=management.accepting_paused reason=%r", reason)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._open) >= MAX_CONNECTIONS:
            write_reply(writer, {"error": "too many control connections; try again", "status": ExitStatus.IO})
            writer.close()
            return
        self._open[task] = writer
        try:
            if await self._knows_secret(reader):
                while await self._serve(reader, writer):
                    pass
        except (OSError, TimeoutError, asyncio.CancelledError):
            # The client is gone or idle, or the broker stops. Abort: the client may never read the rest.
            writer.transport.abort()
        finally:
            del self._open[task]
            writer.close()

    async def _knows_secret(self, reader: asyncio.StreamReader) -> bool:
        """Read the secret with which a connection begins, if there is one; return whether it is right."""
        if self._secret is None:
            return True
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                line = await reader.readuntil(b"\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return False
        return hmac.compare_digest(line[:-1], self._secret.encode())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Read and answer one request; return whether another may follow on the connection.

        False means that the operator closed the connection, or that the request was too large.
        """
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                line = await reader.readuntil(b"\n")
        except asyncio.IncompleteReadError:
            return False
        except asyncio.LimitOverrunError:
            write_reply(
                writer,
                {
                    "error": f"the request is larger than the limit of {REQUEST_LIMIT} bytes",
                    "status": ExitStatus.USAGE,
                },
            )
            return False
        answer = await self._answer(line, _source(writer))
        # In slices: a listing may have tens of thousands of rows.
        parts = await run_in_slices(encode_in_steps(answer, ascii_only=True))
        writer.writelines([*parts, b"\n"])
        async with asyncio.timeout(IDLE_SECONDS):
            await writer.drain()
        return True

    async def _answer(self, line: bytes, source: str) -> dict[str, Json]:
        verb = ""
        try:
            verb, request = parse_request(line)
            with acting_as("rmq-cli"):
                return {"result": await self._perform(verb, request, source)}
        except RequestRefused as refused:
            return {"error": str(refused), "status": refused.status}
        except operator_errors.OperationRefused as refused:
            return {"error": str(refused), "status": ExitStatus.USAGE}
        except Exception:
            logger.exception("event=management.verb_failed verb=%s", verb)
            return {
                "error": f"{verb} failed with an internal error; see the log of the broker",
                "status": ExitStatus.FAILED,
            }


def _source(writer: asyncio.StreamWriter) -> str:
    """Return user id and process id of the client, as text for people; empty if the system does not tell."""
    sock: socket.socket | None = writer.get_extra_info("socket")
    found = None if sock is None else peer_process(sock)
    return "" if found is None else "uid {}, pid {}".format(*found)


def parse_request(line: bytes) -> tuple[str, Request]:
    """Parse a request into its verb and arguments.

    :raises RequestRefused: if the line is not a request
    """
    try:
        request = decode(line)
    except ValueError as error:
        raise RequestRefused(f"the request is not a line of JSON: {error}") from None
    if not isinstance(request, dict) or not isinstance(request.get("verb"), str):
        raise RequestRefused('a request must be a JSON object with a "verb"')
    arguments = request.get("arguments", {})
    if not isinstance(arguments, dict):
        raise RequestRefused('"arguments" must be a JSON object')
    return request["verb"], Request(arguments)


def write_reply(writer: asyncio.StreamWriter, answer: dict[str, Json]) -> None:
    writer.write(json.dumps(answer).encode() + b"\n")


def bind_socket(path: Path) -> socket.socket:
    """Create a Unix socket at a path. It has mode 0600 from its creation on.

    :raises OSError: if the socket cannot be created, or a running process listens there
    """
    assert UNIX_FAMILY is not None
    _refuse_second_broker(path)
    sock = socket.socket(UNIX_FAMILY, socket.SOCK_STREAM)
    try:
        # bind() creates the file with this mode; a chmod afterwards would leave a moment with another mode.
        _set_mode(sock.fileno(), 0o600)
        with short_address(path) as address:
            sock.bind(address)
        path.chmod(0o600)
        sock.listen(MAX_CONNECTIONS)
    except BaseException:
        sock.close()
        raise
    return sock


def _refuse_second_broker(path: Path) -> None:
    """Remove what a stopped broker left at the path of a control socket, or refuse to take the place of a running one.

    :raises OSError: a running process listens there.
    """
    if not path.exists():
        return
    mode = path.stat().st_mode
    if not stat.S_ISSOCK(mode) and read_loopback_endpoint(path) is None:
        return
    try:
        connect(path, PROBE_SECONDS).close()
    except (ConnectionRefusedError, FileNotFoundError, TimeoutError):
        path.unlink(missing_ok=True)
    else:
        raise OSError(f"{path} is the control socket of a running broker")


def _accept_always() -> float:
    return 0.0


def _ignore() -> None:
    return
