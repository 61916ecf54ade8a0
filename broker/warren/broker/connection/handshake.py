"""The life of a connection around its channels: greeting, login, tuning, opening, heartbeats, blocking, closing.

AMQP 0-9-1 sections 2.2.4 and 4.2.2; where RabbitMQ says more (limits, texts, silent closes), its rabbit_reader.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final

from warren.broker.access.sasl import LoginRefused, Peer, log_in, offered
from warren.broker.access.users import User
from warren.broker.channel.authorization import READ
from warren.broker.channel.channel import Channel
from warren.broker.channel.methods import topology_methods
from warren.broker.connection.admission_limits import admit, admit_channel, refused_in
from warren.broker.model.compat_checks import FRAME_MIN as PORTABLE_FRAME_MIN
from warren.wire import field_tables
from warren.wire.methods import BY_ID, Arguments, decode, frame
from warren.wire.reply_codes import AmqpError, Reply, describe_frame

if TYPE_CHECKING:
    from warren.broker.connection.connection import Connection

logger = logging.getLogger(__name__)

GREETINGS: Final = (b"AMQP\x00\x00\x09\x01", b"AMQP\x01\x01\x00\x09")
FRAME_MIN: Final = 4096
"""AMQP 0-9-1's frame-min-size: no peer may negotiate less."""
METHOD: Final = 1
HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
CLOSE_TIMEOUT: Final = 3.0
"""How long the answer to a connection.close is waited for, in seconds; and how long a client may take to read the rest."""
SILENCE: Final = 0.1
"""When the broker stops: after how many seconds without a byte no more is expected of a client."""


SERIALS: Final = itertools.count(1)


class State(Enum):
    """How far a connection has come; the values are RabbitMQ's names, which its error texts use."""

    GREETING = "pre_init"
    START = "starting"
    TUNE = "tuning"
    OPENING = "opening"
    RUNNING = "running"
    CLOSING = "closing"
    CLOSED = "closed"


class Conversation:
    """The connection's state, and what is not about messages."""

    def __init__(self, peer: Peer) -> None:
        self.state = State.GREETING
        self.peer = peer
        self.user: User | None = None
        self.channel_max = 0
        self.heartbeat = 0
        self.silent_checks = 0
        self.timers: list[asyncio.TimerHandle] = []
        self.capabilities: dict[str, field_tables.Value] = {}
        self.mechanism = ""
        self.client_properties = b""
        """What the client said of itself, an encoded table."""
        self.serial = next(SERIALS)
        """No other connection of this process has it."""
        self.connected_at = time.time()

    @property
    def greeted(self) -> bool:
        return self.state is not State.GREETING

    # -- opening

    def greet(self, connection: Connection, header: bytes) -> None:
        """Answer the protocol header; a wrong one is told the right one and let go (section 2.2.4)."""
        if header not in GREETINGS:
            connection.write(GREETINGS[0])
            self.drop(connection)
            return
        self.state = State.START
        node = connection.node
        mechanisms = " ".join(offered(node.login, self.peer)).encode()
        connection.send(frame(0, "connection.start", 0, 9, node.server_properties, mechanisms, b"en_US"))

    def handshake_timeout(self, connection: Connection) -> None:
        if self.state not in (State.RUNNING, State.CLOSED):
            logger.warning("event=handshake_timeout peer=%s state=%s", connection.peer, self.state.value)
            self.drop(connection)

    def method(self, connection: Connection, number: int, payload: bytes) -> None:
        """A method that is not on the hot path."""
        method = BY_ID.get(int.from_bytes(payload[:4]))
        if self.state is State.CLOSING:
            if method is not None and method.name == "connection.close-ok":
                self.drop(connection)
            elif method is not None and method.name == "connection.close":
                connection.write(frame(0, "connection.close-ok"))
                self.drop(connection)
            return
        if number and self.state is not State.RUNNING:
            raise AmqpError(Reply.UNEXPECTED_FRAME, describe_frame(METHOD, payload))
        if method is None:
            raise AmqpError(Reply.COMMAND_INVALID, "unimplemented method")
        arguments = decode(method, payload)
        if number == 0:
            self.connection_method(connection, method.name, arguments)
        else:
            self.channel_method(connection, number, method.name, arguments)

    def connection_method(self, connection: Connection, name: str, arguments: Arguments) -> None:
        if name == "connection.close" and self.state is not State.START:
            # Everything that the client sees as its own ends before it reads close-ok.
            connection.flush()
            connection.end()
            connection.write(frame(0, "connection.close-ok"))
            self.drop(connection)
        elif name == "connection.start-ok" and self.state is State.START:
            self.start_ok(connection, arguments)
        elif name == "connection.tune-ok" and self.state is State.TUNE:
            self.tune_ok(connection, arguments)
        elif name == "connection.open" and self.state is State.OPENING:
            self.open(connection, arguments)
        elif name == "connection.update-secret" and self.state is State.RUNNING:
            self.update_secret(connection)
        else:
            raise AmqpError(Reply.CHANNEL_ERROR, f"unexpected method in connection state {self.state.value}")

    def start_ok(self, connection: Connection, arguments: Arguments) -> None:
        try:
            properties = field_tables.decode(arguments.data("client_properties"))
        except field_tables.TableError as error:
            raise AmqpError(Reply.SYNTAX_ERROR, str(error)) from None
        self.client_properties = arguments.data("client_properties")
        capabilities = properties.get("capabilities")
        self.capabilities = capabilities if isinstance(capabilities, dict) else {}
        connection.can_block = self.capabilities.get("connection.blocked") is True
        connection.can_cancel = self.capabilities.get("consumer_cancel_notify") is True
        mechanism = self.mechanism = arguments.data("mechanism").decode(errors="replace")
        node = connection.node
        try:
            self.user = log_in(node.access, node.login, self.peer, mechanism, arguments.data("response"))
        except LoginRefused as refusal:
            logger.warning(
                "event=login_refused peer=%s mechanism=%s reason=%r", connection.peer, mechanism, str(refusal)
            )
            if self.capabilities.get("authentication_failure_close") is True:
                raise AmqpError(
                    Reply.ACCESS_REFUSED,
                    f"Login was refused using authentication mechanism {mechanism}. For details see the broker logfile.",
                ) from None
            self.drop(connection)
            return
        connection.user = self.user.name.encode()
        limits = connection.node.limits
        self.state = State.TUNE
        connection.send(frame(0, "connection.tune", limits.channel_max, limits.frame_max, limits.heartbeat))

    def tune_ok(self, connection: Connection, arguments: Arguments) -> None:
        limits = connection.node.limits
        self.channel_max = negotiated("channel_max", arguments.number("channel_max"), 0, limits.channel_max)
        frame_max = negotiated("frame_max", arguments.number("frame_max"), FRAME_MIN, limits.frame_max)
        if frame_max < PORTABLE_FRAME_MIN:
            connection.node.virtual_hosts.portability.check("small_frames", frame_max)
        connection.frame_max = frame_max
        self.heartbeat = arguments.number("heartbeat")
        self.state = State.OPENING

    def open(self, connection: Connection, arguments: Arguments) -> None:
        vhost = arguments.data("virtual_host")
        assert self.user is not None
        connection.authorization = admit(connection.node, connection, self.user, vhost)
        connection.vhost = vhost
        connection.open = True
        self.state = State.RUNNING
        connection.send(frame(0, "connection.open-ok", b""))
        if self.heartbeat:
            self.later(connection, self.heartbeat / 2, self.send_heartbeat)
            self.later(connection, self.heartbeat, self.check_heartbeat)

    def update_secret(self, connection: Connection) -> None:
        """The client shows a new secret. Passwords do not expire here: what counts is what its user may do now.

        https://www.rabbitmq.com/docs/oauth2: permissions are looked at anew, and consumers that may not read end.
        """
        node, authorization = connection.node, connection.authorization
        assert authorization is not None
        if authorization.user.name not in node.access.users:
            raise AmqpError(Reply.NOT_ALLOWED, "New secret was refused by one of the backends")
        if not authorization.open:
            raise refused_in(connection.vhost, authorization.user.name)
        connection.send(frame(0, "connection.update-secret-ok"))
        for channel in connection.channels.values():
            for subscription in list(channel.subscriptions.values()):
                if subscription.queue is channel.replies:
                    continue
                try:
                    authorization.check(READ, "queue", subscription.queue.name)
                except AmqpError:
                    subscription.queue.unsubscribe(subscription)
                    subscription.cancel_from_server()
                    subscription.queue.drain()

    # -- channels

    def channel_method(self, connection: Connection, number: int, name: str, arguments: Arguments) -> None:
        channel = connection.channels.get(number)
        if channel is None:
            if name == "channel.open":
                self.open_channel(connection, number)
            elif name == "channel.close-ok":
                return
            else:
                raise AmqpError(Reply.CHANNEL_ERROR, "expected 'channel.open'")
            return
        if channel.closing:
            if name == "channel.close-ok":
                del connection.channels[number]
            elif name == "channel.close":
                connection.send(frame(number, "channel.close-ok"))
                del connection.channels[number]
            return
        if channel.assembler.target is not None:
            raise channel.assembler.unexpected("non content header")
        if name == "channel.open":
            raise AmqpError(Reply.CHANNEL_ERROR, "second 'channel.open' seen")
        if name == "channel.close":
            connection.flush()
            connection.last = None
            channel.close()
            del connection.channels[number]
            connection.send(frame(number, "channel.close-ok"))
            return
        topology_methods.run(connection, channel, name, arguments)

    def open_channel(self, connection: Connection, number: int) -> None:
        limit = self.channel_max
        if len(connection.channels) >= limit:
            raise AmqpError(
                Reply.NOT_ALLOWED,
                f"number of channels opened ({len(connection.channels)}) has reached the negotiated channel_max ({limit})",
            )
        assert connection.authorization is not None
        admit_channel(connection.node, connection, connection.authorization)
        vhost = connection.node.vhosts[connection.vhost].vhost
        connection.channels[number] = Channel(connection, number, vhost)
        connection.send(frame(number, "channel.open-ok", b""))

    def stray_frame(self, kind: int, number: int, payload: bytes) -> None:
        """A header or body frame for a channel that is not open."""
        if self.state is State.CLOSING:
            return
        if self.state is not State.RUNNING or number == 0:
            raise AmqpError(Reply.UNEXPECTED_FRAME, describe_frame(kind, payload))
        raise AmqpError(Reply.UNEXPECTED_FRAME, "expected method frame, got non method frame instead")

    # -- errors and closing

    def refuse(self, connection: Connection, error: AmqpError) -> None:
        """Close the channel or the connection, as the error's code demands."""
        if self.state in (State.CLOSING, State.CLOSED):
            return
        class_id = error.class_id or int(connection.class_id)
        method_id = error.method_id or int(connection.method_id)
        number = int(connection.number)
        channel = connection.channels.get(number)
        connection.flush()
        if error.code.closes_channel_only and channel is not None and self.state is State.RUNNING:
            logger.info(
                "event=channel_error peer=%s channel=%d error=%r", connection.peer, number, error.text
            )
            connection.last = None
            channel.close()
            channel.closing = True
            connection.send(
                frame(number, "channel.close", error.code, error.text.encode(), class_id, method_id)
            )
            return
        logger.warning(
            "event=connection_error peer=%s state=%s error=%r",
            connection.peer,
            self.state.value,
            error.text,
        )
        if self.state is State.START and error.code is not Reply.ACCESS_REFUSED:
            # Whoever has not logged in is told nothing, as in RabbitMQ.
            self.drop(connection)
            return
        self.close(connection, error, class_id, method_id)

    def close(self, connection: Connection, error: AmqpError, class_id: int = 0, method_id: int = 0) -> None:
        """Send connection.close, and end what the client had."""
        if self.state in (State.CLOSING, State.CLOSED):
            return
        self.state = State.CLOSING
        connection.closing = True
        connection.flush()
        connection.write(frame(0, "connection.close", error.code, error.text.encode(), class_id, method_id))
        connection.leave()
        # Nothing holds back any more what the client still sends, of which only the answer counts.
        connection.unread = connection.awaiting = connection.stalled = connection.publishes = False
        connection.received = False
        connection.reading = True
        connection.transport.resume_reading()
        self.later(connection, CLOSE_TIMEOUT, self.drop)

    def shut_down(self, connection: Connection, reason: AmqpError) -> None:
        """The broker stops: tell a client that has logged in, and read on until it falls silent.

        A socket that is closed with something unread in it is reset, and a client that is writing does not read the reason.
        """
        if self.state in (State.GREETING, State.START, State.CLOSED):
            self.drop(connection)
        else:
            self.close(connection, reason)
            self.later(connection, SILENCE, self.drop_if_silent)

    def drop_if_silent(self, connection: Connection) -> None:
        if not connection.received:
            self.drop(connection)
        else:
            connection.received = False
            self.later(connection, SILENCE, self.drop_if_silent)

    def drop(self, connection: Connection) -> None:
        """End the session and the socket, after what is already written has left."""
        if self.state is State.CLOSED:
            return
        self.lost(connection)
        if not connection.transport.is_closing():
            connection.transport.close()
        if connection.transport.get_write_buffer_size():
            # The client may never read it.
            self.later(connection, CLOSE_TIMEOUT, self.cut_off)

    def lost(self, connection: Connection) -> None:
        """The socket is gone, or will be: end the session."""
        self.state = State.CLOSED
        for timer in self.timers:
            timer.cancel()
        self.timers.clear()
        connection.end()

    def cut_off(self, connection: Connection) -> None:
        connection.transport.abort()

    # -- heartbeats: https://www.rabbitmq.com/docs/heartbeats

    def later(self, connection: Connection, delay: float, callback: Callable[[Connection], None]) -> None:
        self.timers = [timer for timer in self.timers if timer.when() > connection.node.loop.time()]
        self.timers.append(connection.node.loop.call_later(delay, callback, connection))

    def send_heartbeat(self, connection: Connection) -> None:
        """Twice in an interval: say something if nothing was said."""
        if connection.closed:
            return
        if not connection.sent:
            connection.write(HEARTBEAT_FRAME)
        connection.sent = False
        self.later(connection, self.heartbeat / 2, self.send_heartbeat)

    def check_heartbeat(self, connection: Connection) -> None:
        """Once in an interval: two of them in a row without a byte, and the client is gone."""
        if connection.closed:
            return
        if connection.received or not connection.reading or connection.stalled:
            self.silent_checks = 0
        else:
            self.silent_checks += 1
        connection.received = False
        if self.silent_checks >= 2:
            logger.warning("event=heartbeat_missed peer=%s timeout=%d", connection.peer, self.heartbeat)
            self.drop(connection)
            return
        self.later(connection, self.heartbeat, self.check_heartbeat)

    # -- blocking: https://www.rabbitmq.com/docs/connection-blocked

    def block(self, connection: Connection) -> None:
        if not connection.blocked:
            connection.blocked = True
            if connection.can_block:
                connection.send(frame(0, "connection.blocked", connection.node.alarm))

    def unblock(self, connection: Connection) -> None:
        if connection.blocked:
            connection.blocked = False
            if connection.can_block:
                connection.send(frame(0, "connection.unblocked"))


def negotiated(field: str, wanted: int, least: int, most: int) -> int:
    """The client's choice, if it lies within what the server offered; 0 means without limit, and is too much.

    :raises AmqpError: 530 with RabbitMQ's text.
    """
    if wanted and wanted < least:
        bound, limit, side = "minimum", least, "lower"
    elif not wanted or wanted > most:
        bound, limit, side = "maximum", most, "higher"
    else:
        return wanted
    raise AmqpError(
        Reply.NOT_ALLOWED,
        f"negotiated {field} = {wanted} is {side} than the {bound} allowed value ({limit})",
    )
