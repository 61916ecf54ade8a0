"""Proxy between the clients of a test and a live broker: rewrites names and times, and deletes what the test declared."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Collection
from contextlib import suppress
from types import TracebackType
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from warren.core.blocking_connection import BlockingConnection, ClosedByBroker
from warren.sdk import TransportUnavailable
from warren.testing.name_rewriting import NameRewriter
from warren.wire.amqp_url import parse_url

log: logging.Logger = logging.getLogger("warren.testing")

METHOD: Final = 1
HEADER: Final = 2
HEARTBEAT: Final = 8
PREFACE_BYTES: Final = 8


class RewritingProxy:
    """Proxy for a live broker: `async with RewritingProxy(url, rewriter) as proxy:`, then connect to `proxy.url`.

    It changes the names of queues and exchanges, and TTLs and delays, in the frames that pass through it. At the end of
    the block it deletes the queues and exchanges that its clients have declared.

    :param target: URL of the broker; with `amqps`, its certificate is verified with the system's authorities.
    :param rewriter: computes the changed names and times.
    :ivar last_frame_at: time of the last frame that is no heartbeat, in seconds of the event loop's clock.
    """

    def __init__(self, target: str, rewriter: NameRewriter) -> None:
        self._target = target
        self._to = parse_url(target)
        self._rewriter = rewriter
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._queues: set[str] = set()
        self._exchanges: set[str] = set()
        self.last_frame_at: float = 0.0

    @property
    def url(self) -> str:
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        parts = urlsplit(self._target)
        login, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(
            parts._replace(scheme="amqp", netloc=f"{login}{at}127.0.0.1:{port}", query="", fragment="")
        )

    async def __aenter__(self) -> RewritingProxy:
        """Start to listen for clients, after a check that the broker can be reached.

        :raises TransportUnavailable: if the broker cannot be reached or refuses the login.
        """
        try:
            await asyncio.to_thread(self._delete, (), ())
        except (OSError, ClosedByBroker) as error:
            raise TransportUnavailable(
                f"no broker under test at {self._to.masked}: {str(error) or type(error).__name__}"
            ) from None
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()
        await asyncio.to_thread(self._delete, tuple(self._queues), tuple(self._exchanges))

    def _delete(self, queues: Collection[str], exchanges: Collection[str]) -> None:
        """Connect to the broker, and delete queues and exchanges there; those that are missing already are no error."""
        connection = BlockingConnection(self._to, product="warren testing")
        try:
            for queue in queues:
                connection.call("queue.delete", 0, queue.encode(), False, False, False)
            for exchange in exchanges:
                connection.call("exchange.delete", 0, exchange.encode(), False, False)
        finally:
            connection.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            secure = ssl.create_default_context() if self._to.tls else None
            far_reader, far_writer = await asyncio.open_connection(self._to.host, self._to.port, ssl=secure)
        except OSError as error:
            log.error("event=testing.connect_failed host=%s error=%s", self._to.host, error)
            writer.transport.abort()
            return
        ends = (writer, far_writer)
        try:
            with suppress(OSError):
                far_writer.write(await reader.readexactly(PREFACE_BYTES))
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._pass(reader, far_writer, from_client=True, ends=ends))
                    both.create_task(self._pass(far_reader, writer, from_client=False, ends=ends))
        except (asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # The client sent no preface, or the test is over.
        finally:
            for end in ends:
                end.transport.abort()

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        from_client: bool,
        ends: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
    ) -> None:
        try:
            while True:
                head = await reader.readexactly(7)
                payload = (await reader.readexactly(int.from_bytes(head[3:7]) + 1))[:-1]
                if head[0] != HEARTBEAT:
                    self.last_frame_at = asyncio.get_running_loop().time()
                payload = (self._from_client if from_client else self._from_broker)(head[0], payload)
                writer.write(head[:3] + len(payload).to_bytes(4) + payload + b"\xce")
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        except ValueError as error:
            log.error("event=testing.connection_cut error=%s", error)
        # Close both ends when one has closed; bytes that are written already are still sent.
        for end in ends:
            end.close()

    def _from_client(self, kind: int, payload: bytes) -> bytes:
        if kind == HEADER:
            return self._rewriter.rewrite_request_header(payload)
        if kind != METHOD:
            return payload
        changed, method, fields = self._rewriter.rewrite_request(payload)
        declared = {"queue.declare": self._queues, "exchange.declare": self._exchanges}
        if method is not None and method.name in declared and not fields.flag("passive"):
            name = fields.data(method.name.partition(".")[0]).decode()
            if name and not name.startswith("amq."):
                declared[method.name].add(name)
        return changed

    def _from_broker(self, kind: int, payload: bytes) -> bytes:
        if kind == HEADER:
            return self._rewriter.rewrite_response_header(payload)
        return self._rewriter.rewrite_response(payload) if kind == METHOD else payload
