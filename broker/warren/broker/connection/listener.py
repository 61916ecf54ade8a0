"""TCP listener: opens accepted sockets, creates a `Connection` for each, and passes the received bytes to it."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from functools import partial
from typing import Final, NamedTuple, cast

from warren.broker.access.sasl_authentication import PeerIdentity
from warren.broker.connection.acceptor import Acceptor, listening_sockets
from warren.broker.connection.admission import Admission, AdmittedSocket
from warren.broker.connection.broker_node import BrokerNode
from warren.broker.connection.connection import Connection
from warren.broker.connection.listen_address import Address
from warren.broker.connection.proxy_protocol import ProxyHeaderError, read_header
from warren.broker.connection.socket_reader import SocketReader
from warren.broker.connection.tcp_statistics import enable_keepalive
from warren.broker.connection.tls import TlsContext

logger = logging.getLogger(__name__)

WRITE_BUFFER_HIGH: Final = 1024 * 1024
"""Size of a socket's write buffer, in bytes, above which deliveries to its consumers pause."""
DRAIN_SECONDS: Final = 2.0
"""Seconds that a stopping broker waits until clients have read their last output, connection.close included."""


class AmqpProtocol(asyncio.BufferedProtocol):
    """asyncio protocol of one client socket.

    It creates the socket's `Connection`. It also receives the input of TLS sockets. Plain sockets are read by the
    `SocketReader` of `warren broker`'s event loop; on any other event loop, this protocol receives their input, too.
    """

    def __init__(self, listener: Listener, tls: TlsContext | None, admitted: AdmittedSocket) -> None:
        """Create the protocol of an accepted socket.

        :param tls: TLS context of the address at which it was accepted; None for a plain socket.
        """
        self._listener = listener
        self._tls = tls
        self._admitted = admitted
        self._node = listener.node
        self._reader = listener.socket_reader
        self._connection: Connection | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)
        stream.set_write_buffer_limits(high=WRITE_BUFFER_HIGH)
        self._admitted.abort = stream.abort
        sock = stream.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            enable_keepalive(sock, self._node.settings.tcp_keepalive)
        encrypted = stream.get_extra_info("ssl_object")
        identity = PeerIdentity(
            self._admitted.address, self._tls.config.user(encrypted) if self._tls and encrypted else None
        )
        self._connection = Connection(self._node, stream, identity)
        self._connection.admitted = self._admitted
        self._node.connections[self._connection] = True
        if self._listener.reads_directly and sock is not None and encrypted is None:
            self._connection.descriptor = sock.fileno()
            self._reader.connections[sock.fileno()] = self._connection
        self._listener.on_socket_opened(stream)
        self._connection.lifecycle.start()

    def get_buffer(self, sizehint: int) -> memoryview:
        assert self._connection is not None
        buffers = self._reader.throttled_buffer if self._connection.throttled else self._reader.normal_buffer
        return buffers[0]

    def buffer_updated(self, nbytes: int) -> None:
        assert self._connection is not None
        self._listener.inputs += 1
        self._connection.data_received(bytes(self._reader.view[:nbytes]))

    def pause_writing(self) -> None:
        assert self._connection is not None
        self._connection.on_write_buffer_full()

    def resume_writing(self) -> None:
        assert self._connection is not None
        self._connection.on_write_buffer_low()

    def eof_received(self) -> None:
        return None

    def connection_lost(self, error: Exception | None) -> None:
        assert self._connection is not None
        self._reader.connections.pop(self._connection.descriptor, None)
        self._connection.descriptor = -1
        self._connection.lifecycle.on_socket_lost()
        self._listener.on_socket_lost(self._connection.transport)
        self._admitted.release()


class BoundAddress(NamedTuple):
    """Address at which connections are accepted, with the scheme of its URL."""

    scheme: str
    """URL scheme: `amqp`, or `amqps` with TLS."""
    address: Address

    def __str__(self) -> str:
        return f"{self.scheme}://{self.address}"


class ListenError(OSError):
    """Failure to listen at an address. The text is one line: the reason, and what to do."""

    def __init__(self, address: Address, error: OSError) -> None:
        super().__init__(error.errno, describe_listen_error(address, error))

    def __str__(self) -> str:
        return str(self.strerror)


class Listener:
    """Listener of a broker: the addresses at which it accepts connections, and their open sockets.

    :param admission: bounds of the sockets that clients may have.
    """

    def __init__(self, node: BrokerNode, admission: Admission) -> None:
        self.node = node
        reader = getattr(node.loop, "socket_reader", None)
        # A loop that is not `warren broker`'s may mean something else by the name.
        self.reads_directly = isinstance(reader, SocketReader)
        """True if the event loop has a `SocketReader`, which then reads the sockets without TLS."""
        self.socket_reader = reader if isinstance(reader, SocketReader) else SocketReader()
        self.inputs = 0
        """Times that asyncio has passed input of a client to its connection; a `SocketReader` is not counted."""
        self.bound: list[BoundAddress] = []
        """Addresses at which the listener accepts connections, in the order in which they were opened."""
        self._admission = admission
        self._acceptor = Acceptor(node.loop, admission.wait, admission.on_paused, admission.on_resumed)
        admission.on_slot_free = self._acceptor.resume
        self.suspended = False
        """True while the addresses are closed, from `suspend` to `resume`."""
        self._changing = asyncio.Lock()
        """Held while the addresses are closed or opened again."""
        self._openings: list[tuple[Address, TlsContext | None, bool]] = []
        """Arguments of `open` that open the same addresses again."""
        self._opening: set[asyncio.Task[None]] = set()
        """Tasks of the sockets that have no protocol yet, because a PROXY header or a TLS handshake comes first."""
        self._transports: set[asyncio.Transport] = set()
        self._no_sockets = asyncio.Event()
        self._no_sockets.set()

    async def open(
        self, address: Address, tls: TlsContext | None = None, *, behind_proxy: bool = False
    ) -> None:
        """Accept connections at one more address.

        :param address: port 0 stands for any free port.
        :param tls: encrypts the connections; None accepts plain ones.
        :param behind_proxy: True if each connection begins with a header of the PROXY protocol.
        :raises ListenError: if the address is in use, is not this machine's, or may not be listened at.
        """
        sockets = await self._listen(address, tls, behind_proxy)
        # A free port differs from one address of the host to another.
        found = [address] if address.port else [Address(*each.getsockname()[:2]) for each in sockets]
        self._openings += [(each, tls, behind_proxy) for each in found]
        self.bound.append(BoundAddress("amqps" if tls else "amqp", Address(address.host, found[0].port)))

    async def _listen(
        self, address: Address, tls: TlsContext | None, behind_proxy: bool
    ) -> list[socket.socket]:
        try:
            sockets = await listening_sockets(*address)
        except OSError as error:
            raise ListenError(address, error) from None
        for each in sockets:
            self._acceptor.listen(each, partial(self._on_accepted, tls, behind_proxy))
        return sockets

    async def suspend(self) -> None:
        """Close the listening sockets until `resume`; connections go on."""
        async with self._changing:
            self.suspended = True
            await self._acceptor.close()

    async def resume(self) -> None:
        """Accept connections again at the same addresses; no effect unless they are suspended.

        :raises ListenError: if one of them is in use by now; all stay closed then.
        """
        async with self._changing:
            if not self.suspended:
                return
            try:
                for opening in self._openings:
                    await self._listen(*opening)
            except ListenError:
                await self._acceptor.close()
                raise
            self.suspended = False
            # A pause for lack of room may have ended while nothing was listening.
            self._acceptor.resume()

    def stop_accepting(self) -> None:
        """Close the listening sockets, and the sockets that are still in their PROXY header or TLS handshake."""
        self._acceptor.stop()
        self.cancel_openings()

    def cancel_openings(self) -> None:
        """Close the sockets that are still in their PROXY header or TLS handshake."""
        for task in self._opening:
            task.cancel()

    def _on_accepted(
        self, tls: TlsContext | None, behind_proxy: bool, accepted: socket.socket, peer: str
    ) -> None:
        task: asyncio.Task[None] | None = None

        def abort() -> None:
            if task is not None:
                task.cancel()

        admitted = self._admission.admit(peer, abort)
        if behind_proxy:
            opening = self._open_proxied(tls, accepted, admitted)
        else:
            opening = self._open_transport(tls, accepted, admitted)
        task = asyncio.ensure_future(opening)
        self._opening.add(task)
        task.add_done_callback(lambda task: self._on_opened(task, accepted, admitted))

    def _on_opened(self, task: asyncio.Task[None], accepted: socket.socket, admitted: AdmittedSocket) -> None:
        self._opening.discard(task)
        if task.cancelled() or task.exception() is not None:
            error = None if task.cancelled() else task.exception()
            if error is not None and not isinstance(error, OSError | ProxyHeaderError):
                logger.error("event=connection.crashed peer=%s", admitted.address, exc_info=error)
            if not admitted.has_transport:
                accepted.close()
            admitted.release()

    async def _open_proxied(
        self, tls: TlsContext | None, accepted: socket.socket, admitted: AdmittedSocket
    ) -> None:
        """Read the header with the client's address that a proxy sends; then open the transport."""
        loop = self.node.loop

        async def read(count: int) -> bytes:
            data = bytearray(count)
            view, have = memoryview(data), 0
            while have < count:
                got = await loop.sock_recv_into(accepted, view[have:])
                if not got:
                    raise ProxyHeaderError("the connection ended within the header")
                have += got
            return bytes(data)

        try:
            async with asyncio.timeout(self.node.settings.handshake_timeout):
                client = await read_header(read)
            if client:
                admitted.set_address(client)
            await self._open_transport(tls, accepted, admitted)
        except (ProxyHeaderError, OSError) as error:
            logger.warning(
                "event=listener.proxied_connection_failed peer=%s reason=%r", admitted.address, str(error)
            )
            raise

    async def _open_transport(
        self, tls: TlsContext | None, accepted: socket.socket, admitted: AdmittedSocket
    ) -> None:
        """Pass the socket to asyncio, and perform the TLS handshake if there is one."""
        # From now on the transport closes the socket, whatever happens.
        admitted.has_transport = True
        await self.node.loop.connect_accepted_socket(
            lambda: AmqpProtocol(self, tls, admitted),
            accepted,
            ssl=tls.context if tls else None,
            ssl_handshake_timeout=self.node.settings.handshake_timeout if tls else None,
            ssl_shutdown_timeout=DRAIN_SECONDS if tls else None,
        )

    async def close(self) -> None:
        """Close the listening sockets, and wait until those of ended connections are closed."""
        await self._acceptor.close()
        await asyncio.gather(*self._opening, return_exceptions=True)
        await self.drain()

    async def drain(self) -> None:
        """Wait until the sockets of ended connections are closed; after DRAIN_SECONDS, abort the remaining ones."""
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._no_sockets.wait()
        except TimeoutError:
            for transport in self._transports:
                transport.abort()
            await self._no_sockets.wait()

    def on_socket_opened(self, transport: asyncio.Transport) -> None:
        """Record that a socket is open, for `close` to wait for it."""
        self._transports.add(transport)
        self._no_sockets.clear()

    def on_socket_lost(self, transport: asyncio.Transport) -> None:
        """Record that a socket is closed; `close` returns when none is open."""
        self._transports.discard(transport)
        if not self._transports:
            self._no_sockets.set()


def describe_listen_error(address: Address, error: OSError) -> str:
    """Return one line: why an address cannot be listened at, and what to do."""
    if error.errno == errno.EADDRINUSE:
        return f"port {address.port} at {address.host} is in use; choose another with --port, or 0 for any free one"
    if error.errno == errno.EACCES:
        return f"not allowed to listen at {address}; choose a port above 1023 with --port"
    return f"cannot listen at {address}: {error.strerror or error}; choose an address of this machine with --host"
