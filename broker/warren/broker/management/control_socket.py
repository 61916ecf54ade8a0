"""The control socket: a request and a reply are a line of JSON each, on a Unix socket that only its owner may open.

A request is `{"verb": NAME, "arguments": {...}}`; its reply is `{"result": VALUE}`, or else
`{"error": ONE LINE, "status": EXIT STATUS}`. A connection may carry any number of them, one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeAlias

from warren.broker.management.request import Json, Refused, Request
from warren.broker.model import operator_errors
from warren.core.errors import ExitStatus

logger = logging.getLogger(__name__)

REQUEST_LIMIT: Final = 32 * 1024 * 1024
"""Bytes of one request: the definitions of some 100,000 queues."""
CONNECTIONS: Final = 32
"""How many may be open at once; further ones are refused."""
IDLE_SECONDS: Final = 60.0
"""How long a connection may keep the broker waiting for its next request, or not read a reply."""
PATH_LIMIT: Final = 100
"""Bytes of a socket's path that every system takes."""

Perform: TypeAlias = Callable[[str, Request], Awaitable[Json]]


class ControlSocket:
    """Accepts requests until it is closed. What they mean, `perform` knows."""

    def __init__(self, perform: Perform) -> None:
        self._perform = perform
        self._server: asyncio.Server | None = None
        self._path: Path | None = None
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def open(self, path: Path) -> None:
        """Listen at a path; a socket that a dead broker has left there is replaced.

        :raises OSError: if it cannot be made, or if somebody listens there.
        """
        sock = listening(path)
        try:
            self._server = await asyncio.start_unix_server(self._accept, sock=sock, limit=REQUEST_LIMIT)
        except BaseException:
            sock.close()
            raise
        self._path = path

    async def close(self) -> None:
        """Stop listening, and end what is open: a request that is being worked on gets no reply."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        tasks = list(self._open)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await server.wait_closed()
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._open) >= CONNECTIONS:
            reply(writer, {"error": "too many control connections; try again", "status": ExitStatus.IO})
            writer.close()
            return
        self._open[task] = writer
        try:
            while await self._serve(reader, writer):
                pass
        except (OSError, TimeoutError, asyncio.CancelledError):
            # Gone, silent for too long, or the broker stops: nobody is waited for who may never read the rest.
            writer.transport.abort()
        finally:
            del self._open[task]
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; False at the end of the connection."""
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                line = await reader.readuntil(b"\n")
        except asyncio.IncompleteReadError:
            return False
        except asyncio.LimitOverrunError:
            reply(
                writer,
                {"error": f"a request may have {REQUEST_LIMIT} bytes at most", "status": ExitStatus.USAGE},
            )
            return False
        reply(writer, await self._answer(line))
        async with asyncio.timeout(IDLE_SECONDS):
            await writer.drain()
        return True

    async def _answer(self, line: bytes) -> dict[str, Json]:
        verb = ""
        try:
            verb, request = parse(line)
            return {"result": await self._perform(verb, request)}
        except Refused as refused:
            return {"error": str(refused), "status": refused.status}
        except operator_errors.OperationRefused as refused:
            return {"error": str(refused), "status": ExitStatus.USAGE}
        except Exception:
            logger.exception("event=control_error verb=%r", verb)
            return {"error": f"{verb} failed; the broker's log says why", "status": ExitStatus.FAILED}


def parse(line: bytes) -> tuple[str, Request]:
    """A request's verb and arguments.

    :raises Refused: if it is none.
    """
    try:
        request = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Refused(f"a request is a line of JSON: {error}") from None
    if not isinstance(request, dict) or not isinstance(request.get("verb"), str):
        raise Refused('a request is an object with a "verb"')
    arguments = request.get("arguments", {})
    if not isinstance(arguments, dict):
        raise Refused('"arguments" has to be an object')
    return request["verb"], Request(arguments)


def reply(writer: asyncio.StreamWriter, answer: dict[str, Json]) -> None:
    writer.write(json.dumps(answer).encode() + b"\n")


def listening(path: Path) -> socket.socket:
    """A socket at a path, mode 0600 from its first moment.

    :raises OSError: if it cannot be made, or if somebody listens there.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = -1
    try:
        address = str(path)
        if len(os.fsencode(address)) > PATH_LIMIT:
            # The kernel takes no longer one; by its folder's handle it is short.
            folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
            address = f"/proc/self/fd/{folder}/{path.name}"
        if path.exists() and stat.S_ISSOCK(path.stat().st_mode):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.settimeout(1.0)
                try:
                    probe.connect(address)
                except (ConnectionRefusedError, TimeoutError):
                    path.unlink()
                else:
                    raise OSError(f"{path} is the control socket of a running broker")
        # The mode that the file gets when it is bound: a chmod after it would come too late.
        os.fchmod(sock.fileno(), 0o600)
        sock.bind(address)
        os.chmod(path, 0o600)
        sock.listen(CONNECTIONS)
    except BaseException:
        sock.close()
        raise
    finally:
        if folder >= 0:
            os.close(folder)
    return sock
