"""Events of connections, channels and consumers, for the event exchange."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warren.broker.model.broker_events import text

if TYPE_CHECKING:
    from warren.broker.channel.channel import Channel
    from warren.broker.channel.subscription import Subscription
    from warren.broker.connection.connection import Connection
    from warren.wire.field_tables import Value


def on_login(connection: Connection, mechanism: str, user: str, error: str = "") -> None:
    """Publish the outcome of a login.

    :param user: name of the user; empty if it is unknown.
    :param error: why it was refused; empty if it succeeded.
    """
    events = connection.node.virtual_hosts.events
    if events is None:
        return
    fields: dict[str, Value] = {
        "auth_mechanism": mechanism,
        "connection_name": connection.shown_name(),
        "connection_type": "network",
        "protocol": "{0,9,1}",
        "ssl": connection.transport.get_extra_info("ssl_object") is not None,
    }
    if user:
        fields["name"] = user
    if error:
        fields["error"] = error
    events.emit(f"user.authentication.{'failure' if error else 'success'}", fields, has_actor=False)


def on_opened(connection: Connection) -> None:
    """Publish that a connection has opened a virtual host."""
    events = connection.node.virtual_hosts.events
    if events is None:
        return
    events.emit(
        "connection.created",
        {
            "name": connection.shown_name(),
            "user": text(connection.user),
            "vhost": text(connection.vhost),
            "auth_mechanism": connection.lifecycle.handshake.mechanism,
            "protocol": "{0,9,1}",
            "ssl": connection.transport.get_extra_info("ssl_object") is not None,
            "frame_max": int(connection.frame_max),
            "channel_max": connection.lifecycle.handshake.channel_max,
            "timeout": connection.lifecycle.handshake.heartbeat,
            "connected_at": round(connection.connected_at * 1000),
            "type": "network",
        },
    )


def on_closed(connection: Connection) -> None:
    """Publish that a connection which had opened a virtual host has ended."""
    events = connection.node.virtual_hosts.events
    if events is not None:
        events.emit("connection.closed", {"name": connection.shown_name()}, has_actor=False)


def on_channel_opened(channel: Channel) -> None:
    """Publish that a channel was opened."""
    events = channel.vhost.events
    if events is None:
        return
    user = text(channel.connection.user)
    events.emit(
        "channel.created",
        {
            "name": f"{channel.connection.shown_name()} ({int(channel.number)})",
            "number": int(channel.number),
            "user": user,
            "user_who_performed_action": user,
            "vhost": text(channel.vhost.name),
        },
        has_actor=False,
    )


def on_channel_closed(channel: Channel) -> None:
    """Publish that a channel has ended."""
    events = channel.vhost.events
    if events is None:
        return
    name = f"{channel.connection.shown_name()} ({int(channel.number)})"
    fields: dict[str, Value] = {"name": name, "user_who_performed_action": text(channel.connection.user)}
    events.emit("channel.closed", {**fields, "consumer_count": 0}, has_actor=False)


def on_consumer_started(subscription: Subscription) -> None:
    """Publish that a consumer was added to a queue."""
    _emit_consumer(
        subscription,
        "created",
        {
            "ack_required": not subscription.no_ack,
            "exclusive": bool(subscription.exclusive),
            "prefetch_count": int(subscription.prefetch),
        },
    )


def on_consumer_ended(subscription: Subscription) -> None:
    """Publish that a consumer has ended."""
    _emit_consumer(subscription, "deleted", {})


def _emit_consumer(subscription: Subscription, what: str, fields: dict[str, Value]) -> None:
    channel = subscription.channel
    events = channel.vhost.events
    if events is None:
        return
    events.emit(
        f"consumer.{what}",
        {
            **fields,
            "consumer_tag": text(subscription.tag),
            "queue": text(subscription.queue.name),
            "channel": f"{channel.connection.shown_name()} ({int(channel.number)})",
            "vhost": text(channel.vhost.name),
            "user_who_performed_action": text(channel.connection.user),
        },
        has_actor=False,
    )
