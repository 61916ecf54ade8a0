"""Handshake of a connection: protocol header, login, tuning of limits, opening of a virtual host.

AMQP 0-9-1 sections 2.2.4 and 4.2.2. Limits and error texts follow RabbitMQ's module rabbit_reader.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from warren.broker.access.login_chain import Login, LoginRefused
from warren.broker.access.sasl_authentication import authenticate, offered_mechanisms
from warren.broker.channel.client_events import on_login, on_opened
from warren.broker.connection.connection_phases import OPENING, RUNNING, STARTING, TUNING
from warren.broker.model.compat_checks import FRAME_MIN as PORTABLE_FRAME_MIN
from warren.wire import field_tables
from warren.wire.methods import Arguments, frame
from warren.wire.reply_codes import AmqpError, Reply

if TYPE_CHECKING:
    from warren.broker.connection.connection import Connection
    from warren.broker.connection.lifecycle import ConnectionLifecycle

logger = logging.getLogger(__name__)

PROTOCOL_HEADERS: Final = (b"AMQP\x00\x00\x09\x01", b"AMQP\x01\x01\x00\x09")
"""Accepted protocol headers of AMQP 0-9-1: the specification's, and one that old clients send."""
FRAME_MIN: Final = 4096
"""AMQP 0-9-1's frame-min-size in bytes: no client may negotiate less."""


class Handshake:
    """Handshake of one connection, with the limits and client properties that it negotiated.

    :ivar channel_max: the negotiated largest number of channels.
    :ivar heartbeat: the negotiated heartbeat timeout in seconds; 0 is none.
    :ivar mechanism: name of the SASL mechanism that the client logged in with.
    :ivar client_properties: the client's description of itself, an encoded field table.
    """

    def __init__(self, connection: Connection, lifecycle: ConnectionLifecycle) -> None:
        self._connection = connection
        self._lifecycle = lifecycle
        self._login: Login | None = None
        self.channel_max = 0
        self.heartbeat = 0
        self.mechanism = ""
        self.client_properties = b""

    def receive_header(self, header: bytes) -> None:
        """Answer the client's protocol header with connection.start; if it is wrong, send the right one and close."""
        connection, node = self._connection, self._connection.node
        if header not in PROTOCOL_HEADERS:
            connection.write(PROTOCOL_HEADERS[0])
            self._lifecycle.drop()
            return
        self._lifecycle.enter(STARTING)
        mechanisms = " ".join(offered_mechanisms(node.login_settings, connection.identity)).encode()
        connection.send(frame(0, "connection.start", 0, 9, node.server_properties, mechanisms, b"en_US"))

    def receive_start_ok(self, arguments: Arguments) -> None:
        """Process connection.start-ok: log the client in with its SASL response.

        A refused login is answered later: with 403 if the client has the capability authentication_failure_close, else
        by closing the socket.

        :raises AmqpError: 502 for malformed client properties or a malformed response.
        """
        connection, node = self._connection, self._connection.node
        try:
            properties = field_tables.decode(arguments.data("client_properties"))
        except field_tables.TableError as error:
            raise AmqpError(Reply.SYNTAX_ERROR, str(error)) from None
        self.client_properties = arguments.data("client_properties")
        found = properties.get("capabilities")
        capabilities = found if isinstance(found, dict) else {}
        connection.supports_blocked = capabilities.get("connection.blocked") is True
        connection.supports_cancel = capabilities.get("consumer_cancel_notify") is True
        mechanism = self.mechanism = arguments.data("mechanism").decode(errors="replace")
        try:
            login = authenticate(
                node.logins, node.login_settings, connection.identity, mechanism, arguments.data("response")
            )
        except LoginRefused as refusal:
            logger.warning(
                "event=connection.login_refused peer=%s mechanism=%s reason=%r",
                connection.peer,
                mechanism,
                str(refusal),
            )
            node.churn.logins_refused["amqp091"] += 1
            on_login(connection, mechanism, "", str(refusal))
            explains = capabilities.get("authentication_failure_close") is True
            self._refuse_login(mechanism, explains)
            return
        node.churn.logins["amqp091"] += 1
        on_login(connection, self.mechanism, login.user.name)
        self._login = login
        connection.user = login.user.name.encode()
        settings = node.settings
        self._lifecycle.enter(TUNING)
        connection.send(
            frame(0, "connection.tune", settings.channel_max, settings.frame_max, settings.heartbeat)
        )

    def _refuse_login(self, mechanism: str, explains: bool) -> None:
        """Refuse the login after the delay that its address gets for failed logins; nothing is read until then.

        :param mechanism: name of the SASL mechanism.
        :param explains: True to send connection.close with 403; False to close the socket only.
        """
        connection, node = self._connection, self._connection.node

        def refuse() -> None:
            if explains:
                text = f"Login was refused using authentication mechanism {mechanism}. For details see the broker logfile."
                self._lifecycle.handle_error(AmqpError(Reply.ACCESS_REFUSED, text))
            else:
                self._lifecycle.drop()

        delay = node.login_delays.next_delay(connection.identity.address)
        # Before the end of the handshake timeout, after which the client would get no explanation.
        delay = min(delay, node.settings.handshake_timeout / 2)
        if delay:
            connection.await_reply()
            self._lifecycle.call_later(delay, lambda: connection.resume_with(refuse))
        else:
            refuse()

    def receive_tune_ok(self, arguments: Arguments) -> None:
        """Apply the limits that the client chose in connection.tune-ok.

        :raises AmqpError: 530 if a limit is outside of the range that the broker offered.
        """
        node = self._connection.node
        settings = node.settings
        self.channel_max = negotiate("channel_max", arguments.number("channel_max"), 0, settings.channel_max)
        frame_max = negotiate("frame_max", arguments.number("frame_max"), FRAME_MIN, settings.frame_max)
        if frame_max < PORTABLE_FRAME_MIN:
            node.virtual_hosts.portability.check("small_frames", frame_max)
        self._connection.frame_max = frame_max
        self.heartbeat = arguments.number("heartbeat")
        self._lifecycle.enter(OPENING)

    def receive_open(self, arguments: Arguments) -> None:
        """Open the connection to a virtual host, and start heartbeats.

        :raises AmqpError: 530 if there is no such virtual host, the user may not access it, or a limit is reached.
        """
        connection = self._connection
        vhost = arguments.data("virtual_host")
        assert self._login is not None
        connection.authorization = connection.node.limits.authorize(connection, self._login, vhost)
        connection.vhost = vhost
        self._lifecycle.credentials.accept(self._login)
        connection.node.churn.connections_opened += 1
        on_opened(connection)
        self._lifecycle.enter(RUNNING)
        if connection.admitted is not None:
            connection.admitted.on_opened()
        connection.send(frame(0, "connection.open-ok", b""))
        if self.heartbeat:
            self._lifecycle.heartbeats.start(self.heartbeat)


def negotiate(field: str, value: int, minimum: int, maximum: int) -> int:
    """Return the client's choice (`value`) of one limit in connection.tune-ok; 0, no limit, becomes `maximum`.

    :param field: name of the limit, such as `frame_max`, for the error text.
    :param minimum: smallest value that is accepted.
    :param maximum: value that the broker offered in connection.tune, the largest that is accepted.
    :raises AmqpError: 530, with RabbitMQ's text, if the choice is outside of the range that the broker offered.
    """
    if value and value < minimum:
        bound, limit, side = "minimum", minimum, "lower"
    elif not value or value > maximum:
        bound, limit, side = "maximum", maximum, "higher"
    else:
        return value
    raise AmqpError(
        Reply.NOT_ALLOWED,
        f"negotiated {field} = {value} is {side} than the {bound} allowed value ({limit})",
    )
