"""Life cycle of a connection: its phase, the methods that are not on the hot path, errors, and closing.

AMQP 0-9-1 section 2.2.4. Limits, error texts and silent closes follow RabbitMQ's module rabbit_reader.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from warren.broker.access.authorization import READ
from warren.broker.access.pending_decisions import DecisionPending
from warren.broker.channel.channel import Channel
from warren.broker.channel.client_events import on_channel_opened, on_closed
from warren.broker.channel.methods.method_dispatch import run_method
from warren.broker.connection.client_session import SessionDescription
from warren.broker.connection.connection_limits import vhost_access_refused
from warren.broker.connection.connection_phases import (
    AWAITING_HEADER,
    CLOSED,
    CLOSING,
    LINGERING,
    OPENING,
    PHASE_NAMES,
    RUNNING,
    STARTING,
    TUNING,
)
from warren.broker.connection.credentials import Credentials
from warren.broker.connection.flow_control import ALARM, PUBLISHER_PAUSED, TURN_OVER
from warren.broker.connection.handshake import Handshake
from warren.broker.connection.heartbeats import Heartbeats
from warren.broker.connection.send_timeout import SendTimeout
from warren.broker.connection.tcp_statistics import bytes_received
from warren.broker.model.broker_events import acting_as
from warren.core.operating_system.sockets import unread_bytes
from warren.wire.methods import BY_ID, Arguments, decode, frame
from warren.wire.reply_codes import AmqpError, Reply, describe_frame

if TYPE_CHECKING:
    from warren.broker.connection.connection import Connection

logger = logging.getLogger(__name__)

METHOD: Final = 1
PROTOCOL: Final = "AMQP 0-9-1"
CLOSE_TIMEOUT: Final = 3.0
"""Seconds that a client gets to answer connection.close and to read its remaining output."""
LINGER_SECONDS: Final = 30.0
"""Seconds after connection.close-ok for which input is discarded until the client closes its socket, as in RabbitMQ.

A socket that is closed with unread input is reset: a client that publishes in the same burst could not read the reply.
"""
SILENCE: Final = 0.1
"""Seconds without input from the client after which `shut_down` closes the socket."""


class ConnectionLifecycle:
    """Life cycle of one connection: its phase, the methods that are not on the hot path, errors, and closing."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.handshake = Handshake(connection, self)
        self.heartbeats = Heartbeats(connection, self)
        self.send_timeout = SendTimeout(connection, self, connection.node.settings.send_timeout)
        self.credentials = Credentials(connection, self)
        self._timers: list[asyncio.TimerHandle] = []

    @property
    def phase_name(self) -> str:
        """Name of the connection's phase as RabbitMQ lists it in the item `state`, such as `running`."""
        return PHASE_NAMES[self.connection.phase]

    def describe(self) -> SessionDescription:
        """Return the state of the connection, and what client and broker have agreed."""
        connection, handshake = self.connection, self.handshake
        state = self.phase_name
        if connection.reads_paused & ALARM:
            state = "blocked"
        elif connection.phase == RUNNING and connection.reads_paused & PUBLISHER_PAUSED:
            state = "flow"
        return SessionDescription(
            state,
            PROTOCOL if connection.phase > AWAITING_HEADER else "",
            handshake.mechanism,
            handshake.heartbeat,
            int(connection.frame_max),
            handshake.channel_max,
            handshake.client_properties,
        )

    def pending_work(self) -> str:
        """Return which work is unfinished: `output for` the client, `input from` it; empty for none."""
        connection = self.connection
        if connection.phase == CLOSED:
            return ""
        if (
            connection.out
            or connection.flush_scheduled
            or (connection.large_output and connection.large_output.is_scheduled)
        ):
            return "output for"
        sock = connection.transport.get_extra_info("socket")
        if connection.reads_paused & TURN_OVER or (
            not connection.reads_paused and unread_bytes(sock.fileno())
        ):
            return "input from"
        return ""

    def enter(self, phase: int) -> None:
        """Change the connection's phase; phases only move forward, and only this method changes them."""
        assert phase > self.connection.phase
        self.connection.phase = phase

    def call_later(self, delay: float, callback: Callable[[], None]) -> None:
        """Call `callback` after `delay` seconds, unless the connection has ended by then."""
        loop = self.connection.node.loop
        self._timers = [timer for timer in self._timers if timer.when() > loop.time()]
        self._timers.append(loop.call_later(delay, callback))

    def start(self) -> None:
        """Start the handshake timeout, within which the client has to open the connection."""
        self.call_later(self.connection.node.settings.handshake_timeout, self._check_handshake)

    def _check_handshake(self) -> None:
        connection = self.connection
        if connection.phase < RUNNING:
            logger.warning(
                "event=connection.handshake_timed_out peer=%s phase=%s", connection.peer, self.phase_name
            )
            self.drop()

    # -- methods of the connection

    def process_method(self, number: int, payload: bytes) -> None:
        """Process a method that is not on the hot path.

        :param number: the channel of the method; 0 for methods of the connection itself.
        :param payload: payload of the method frame.
        :raises AmqpError: if the method is unknown, malformed, out of place, or fails.
        """
        connection = self.connection
        method = BY_ID.get(int.from_bytes(payload[:4]))
        if connection.phase == CLOSING:
            if method is not None and method.name == "connection.close-ok":
                self.drop()
            elif method is not None and method.name == "connection.close":
                self._begin_linger()
                self._confirm_close()
            return
        if number and connection.phase != RUNNING:
            raise AmqpError(Reply.UNEXPECTED_FRAME, describe_frame(METHOD, payload))
        if method is None:
            raise AmqpError(Reply.COMMAND_INVALID, "unimplemented method")
        arguments = decode(method, payload)
        if number == 0:
            self._process_connection_method(method.name, arguments)
        else:
            self._process_channel_method(number, method.name, arguments)

    def _process_connection_method(self, name: str, arguments: Arguments) -> None:
        connection, phase = self.connection, self.connection.phase
        if name == "connection.close" and phase != STARTING:
            # Everything that the client considers its own ends before it reads close-ok.
            connection.flush()
            self._begin_linger()
            bulk_work = connection.node.virtual_hosts.bulk_work
            if bulk_work.is_pending(connection):
                # Nobody reads the socket any more: input there would wake the event loop again and again.
                connection.transport.pause_reading()
            bulk_work.after(connection, self._confirm_close)
        elif name == "connection.start-ok" and phase == STARTING:
            self.handshake.receive_start_ok(arguments)
        elif name == "connection.tune-ok" and phase == TUNING:
            self.handshake.receive_tune_ok(arguments)
        elif name == "connection.open" and phase == OPENING:
            self.handshake.receive_open(arguments)
        elif name == "connection.update-secret" and phase == RUNNING:
            self._update_secret(arguments.data("new_secret"))
        else:
            raise AmqpError(Reply.CHANNEL_ERROR, f"unexpected method in connection state {self.phase_name}")

    def _begin_linger(self) -> None:
        """Release what the connection has, because its client closes it, and discard further input."""
        self._release(LINGERING)
        self.connection.node.lingering[self.connection] = True

    def _confirm_close(self) -> None:
        """Send connection.close-ok, unless the socket was lost meanwhile, and leave it to the client to close the socket."""
        connection = self.connection
        if connection.phase == LINGERING and not connection.transport.is_closing():
            connection.write(frame(0, "connection.close-ok"))
            connection.reads_paused = 0
            connection.transport.resume_reading()
            self.call_later(LINGER_SECONDS, self.drop)

    def _update_secret(self, secret: bytes) -> None:
        """Process connection.update-secret: accept a new access token, and cancel consumers that may no longer read.

        For a user with a password the new secret is ignored, but the user must still exist.
        Source: https://www.rabbitmq.com/docs/oauth2#token-expiration.
        """
        connection = self.connection
        authorization = self.credentials.renew(secret)
        if not authorization.may_open_vhost:
            raise vhost_access_refused(connection.vhost, authorization.user.name)
        # All are decided before the reply: a pending decision repeats the method.
        refused = []
        for channel in connection.channels.values():
            for subscription in channel.subscriptions.values():
                if subscription.queue is channel.replies:
                    continue
                try:
                    authorization.check(READ, "queue", subscription.queue.name)
                except AmqpError:
                    refused.append(subscription)
        connection.send(frame(0, "connection.update-secret-ok"))
        for subscription in refused:
            subscription.queue.unsubscribe(subscription)
            subscription.cancel_from_server()
            subscription.queue.drain()

    # -- methods of channels

    def _process_channel_method(self, number: int, name: str, arguments: Arguments) -> None:
        connection = self.connection
        channel = connection.channels.get(number)
        if channel is None:
            if name == "channel.open":
                self._open_channel(number)
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
            connection.forget_target()
            channel.close()
            del connection.channels[number]
            connection.after_bulk_work(lambda: connection.send(frame(number, "channel.close-ok")))
            return
        if channel.vhost.events is None:
            run_method(connection, channel, name, arguments)
        else:
            with acting_as(connection.user.decode(errors="surrogateescape")):
                run_method(connection, channel, name, arguments)

    def _open_channel(self, number: int) -> None:
        connection = self.connection
        limit = self.handshake.channel_max
        if len(connection.channels) >= limit:
            raise AmqpError(
                Reply.NOT_ALLOWED,
                f"number of channels opened ({len(connection.channels)}) has reached the negotiated channel_max ({limit})",
            )
        connection.node.limits.check_new_channel(connection)
        vhost = connection.node.vhosts[connection.vhost].vhost
        channel = connection.channels[number] = Channel(connection, number, vhost)
        on_channel_opened(channel)
        connection.node.churn.channels_opened += 1
        connection.send(frame(number, "channel.open-ok", b""))

    def reject_content_frame(self, kind: int, number: int, payload: bytes) -> None:
        """Raise the error of a header or body frame on a channel that is not open; while closing, ignore the frame.

        :param kind: frame type: header or body.
        :param number: number of the channel.
        :param payload: payload of the frame, for the error text.
        :raises AmqpError: 505.
        """
        phase = self.connection.phase
        if phase == CLOSING:
            return
        if phase != RUNNING or number == 0:
            raise AmqpError(Reply.UNEXPECTED_FRAME, describe_frame(kind, payload))
        raise AmqpError(Reply.UNEXPECTED_FRAME, "expected method frame, got non method frame instead")

    # -- errors and closing

    def fail_channel(self, number: int, error: AmqpError) -> None:
        """Handle an error that no frame of the client has caused, such as an acknowledgement timeout.

        Close the channel with this number, or the whole connection, depending on the reply code.
        """
        connection = self.connection
        connection.channel_number = number
        connection.class_id = connection.method_id = 0
        self.handle_error(error)

    def handle_error(self, error: AmqpError) -> None:
        """Close the channel whose frame caused an error, or the whole connection, depending on the reply code."""
        connection = self.connection
        if connection.phase >= CLOSING:
            return
        class_id = error.class_id or int(connection.class_id)
        method_id = error.method_id or int(connection.method_id)
        number = int(connection.channel_number)
        channel = connection.channels.get(number)
        connection.flush()
        if error.code.closes_channel_only and channel is not None and connection.phase == RUNNING:
            logger.info(
                "event=channel.closed_on_error peer=%s channel=%d error=%r",
                connection.peer,
                number,
                error.text,
            )
            connection.forget_target()
            channel.close()
            channel.closing = True
            reply = frame(number, "channel.close", error.code, error.text.encode(), class_id, method_id)
            connection.after_bulk_work(lambda: connection.send(reply))
            return
        logger.warning(
            "event=connection.closed_on_error peer=%s phase=%s error=%r",
            connection.peer,
            self.phase_name,
            error.text,
        )
        if connection.phase == STARTING and error.code is not Reply.ACCESS_REFUSED:
            # Who has not logged in gets no explanation, as in RabbitMQ.
            self.drop()
            return
        self.close(error, class_id, method_id)

    def close(self, error: AmqpError, class_id: int = 0, method_id: int = 0) -> None:
        """Send connection.close and close the channels.

        The socket is closed when connection.close-ok arrives, at the latest after CLOSE_TIMEOUT.

        :param class_id: class id of the method that caused the error, for connection.close; 0 if none did.
        :param method_id: method id of that method; 0 if none did.
        """
        connection = self.connection
        if connection.phase >= CLOSING:
            return
        self.enter(CLOSING)
        connection.flush()
        connection.write(frame(0, "connection.close", error.code, error.text.encode(), class_id, method_id))
        connection.release_channels()
        connection.node.hangups.unwatch(connection)
        # Nothing pauses what the client still sends, of which only the answer counts.
        connection.reads_paused = 0
        connection.has_published = connection.has_received = False
        connection.transport.resume_reading()
        self.call_later(CLOSE_TIMEOUT, self.drop)

    def shut_down(self, reason: AmqpError) -> None:
        """Send connection.close; close the socket when the client has answered, or sent nothing for SILENCE seconds.

        The operating system resets a socket that is closed with unread input; the client could then not read
        connection.close.
        A connection that has not logged in is dropped at once, without connection.close.
        """
        if self.connection.phase <= STARTING or self.connection.phase == CLOSED:
            self.drop()
        else:
            self.close(reason)
            self.call_later(SILENCE, self._drop_if_silent)

    def _drop_if_silent(self) -> None:
        if not self.connection.has_received:
            self.drop()
        else:
            self.connection.has_received = False
            self.call_later(SILENCE, self._drop_if_silent)

    def drop(self) -> None:
        """End the connection, and close its socket when the output has been written."""
        if self.connection.phase != CLOSED:
            self._end()
            self.close_socket()

    def on_hung_up(self) -> None:
        """End the connection of a client that has closed its socket while the broker does not read it.

        Input that was not read yet is discarded: nothing of it was confirmed.
        """
        logger.warning("event=connection.ended_while_blocked peer=%s", self.connection.peer)
        self.abort()

    def abort(self) -> None:
        """End the connection, and close its socket at once: output that the client has not read is discarded."""
        self._end()
        self.connection.transport.abort()

    def on_socket_lost(self) -> None:
        """Release the connection's resources after its socket was lost."""
        self.connection.large_output = None
        self._end()
        self._cancel_timers()

    def _end(self) -> None:
        """Release channels, timers and other resources of the connection; do nothing if it has ended already."""
        if self.connection.phase == LINGERING:
            self.enter(CLOSED)
            self._cancel_timers()
            self.connection.node.lingering.pop(self.connection, None)
        elif self.connection.phase != CLOSED:
            self._release(CLOSED)

    def _release(self, phase: int) -> None:
        """Release what the connection has, and enter a phase in which nothing is processed any more.

        :param phase: LINGERING or CLOSED.
        """
        connection = self.connection
        self.enter(phase)
        if connection.vhost:
            connection.node.churn.connections_closed += 1
            connection.node.churn.bytes_received += (
                bytes_received(connection.transport.get_extra_info("socket")) or 0
            )
            on_closed(connection)
        self._cancel_timers()
        connection.buffer = b""
        connection.position = 0
        connection.has_published = False
        connection.release_channels()
        connection.node.connections.pop(connection, None)
        connection.node.flow.paused.pop(connection, None)
        connection.node.hangups.unwatch(connection)

    def close_socket(self) -> None:
        """Close the socket when the output has been written, at the latest after CLOSE_TIMEOUT."""
        connection = self.connection
        transport = connection.transport
        if connection.large_output is not None and not transport.is_closing():
            # The last reply may be behind a large delivery, of which the transport gets a part at a time.
            connection.large_output.closes_socket = True
            transport.pause_reading()
            self.call_later(CLOSE_TIMEOUT, transport.abort)
            return
        if not transport.is_closing():
            transport.close()
        if transport.get_write_buffer_size():
            # The client may never read the rest.
            self.call_later(CLOSE_TIMEOUT, transport.abort)

    def await_decision(self, pending: DecisionPending) -> None:
        """Process no more frames until an access decision is known; then process the frame that needs it again."""
        connection = self.connection
        connection.await_reply()
        pending.answered.add_done_callback(lambda _: connection.resume_with(_send_nothing))

    def _cancel_timers(self) -> None:
        self.credentials.stop()
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()


def _send_nothing() -> None:
    return
