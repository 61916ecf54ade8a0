"""Session of a client, whatever protocol it speaks: what limits, alarms, statistics, listings and shutdown need of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from warren.broker.access.authorization import Authorization
    from warren.broker.channel.channel import Channel
    from warren.broker.model.message import Message
    from warren.wire.reply_codes import AmqpError


class SessionDescription(NamedTuple):
    """State of a session, and what client and broker have agreed, for listings.

    :ivar state: name of the state, as RabbitMQ lists it: `running`, `flow`, `blocked` or that of a phase.
    :ivar protocol: name and version of the protocol, such as `AMQP 0-9-1`; empty before the client has named it.
    :ivar mechanism: authentication mechanism of the login; empty before it.
    :ivar heartbeat: seconds of the heartbeat; 0 for none.
    :ivar frame_max: largest frame in bytes.
    :ivar channel_max: most channels; 0 for no limit.
    :ivar client_properties: properties that the client has sent, an encoded field table.
    """

    state: str
    protocol: str
    mechanism: str
    heartbeat: int
    frame_max: int
    channel_max: int
    client_properties: bytes


class ClientSession(Protocol):
    """Connection of a client, from its acceptance to its end.

    The connection of AMQP 0-9-1 is one. A session is a member of `BrokerNode.connections`, until it ends.
    """

    @property
    def serial(self) -> int:
        """Number that no other session of this process has."""

    @property
    def peer(self) -> str:
        """Address of the client."""

    @property
    def transport(self) -> asyncio.Transport:
        """Transport of the session's socket."""

    @property
    def connected_at(self) -> float:
        """Unix time at which the session was accepted."""

    @property
    def user(self) -> bytes:
        """Name of the user, once logged in; empty before."""

    @property
    def vhost(self) -> bytes:
        """Name of the virtual host, once the session is open; empty before."""

    @property
    def authorization(self) -> Authorization | None:
        """Permissions of the user in the virtual host; None until the session is open."""

    @property
    def channels(self) -> dict[int, Channel]:
        """Channels by number; empty in a protocol that has none."""

    def shown_name(self) -> str:
        """Return the name of the session as RabbitMQ forms it: client address `->` broker address."""

    def describe(self) -> SessionDescription:
        """Return the state of the session, and what client and broker have agreed."""

    def held_messages(self) -> Iterator[list[Message]]:
        """Yield the messages that wait for an acknowledgement of the client, in parts: those of a channel at once."""

    def unsent_bytes(self) -> int:
        """Return the bytes of output that the socket has not taken yet."""

    def pending_work(self) -> str:
        """Return which work of the session is unfinished: `output for` the client, `input from` it; empty for none."""

    # -- alarms

    def on_alarm(self) -> None:
        """Prepare for a resource alarm that begins: the next publish leads to `block`."""

    def block(self) -> None:
        """Stop reading the client, who publishes during a resource alarm, and tell it if the protocol can."""

    def resume_publisher(self) -> None:
        """Read the client again, after an alarm or a pause for the disk."""

    def blocked_input_bytes(self) -> int:
        """Return the bytes of memory that hold input which waits for the end of an alarm; 0 without an alarm."""

    # -- the end

    def stop_reading(self) -> None:
        """Read the client no more, because the broker stops."""

    def cancel_consumers(self) -> None:
        """Cancel all consumers of the session."""

    def flush(self) -> None:
        """Write the pending output."""

    def shut_down(self, reason: AmqpError) -> None:
        """Tell the client why the session ends, as far as the protocol can, and end it."""
