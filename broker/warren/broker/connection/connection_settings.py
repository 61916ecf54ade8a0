"""Settings of a broker that apply to each of its connections and channels."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ConnectionSettings:
    """Limits that are negotiated with clients or enforced on them, and defaults for their messages.

    :param channel_max: the most channels per connection that the broker offers in connection.tune.
    :param frame_max: the largest frame that it offers, in bytes.
    :param heartbeat: the heartbeat timeout that it proposes, in seconds; 0 proposes none.
    :param max_message_size: the largest body of a message, in bytes.
    :param handshake_timeout: seconds that a client has from connecting to connection.open.
    :param max_connections: connections of the whole broker; None is no limit.
    :param login_failure_delay: seconds until the first refused login of an address is answered; 0 answers at once.
    :param tcp_keepalive: seconds without input after which the system probes a client; 0 probes none.
    :param send_timeout: seconds after which the connection of a client that has stopped reading is ended; 0 is never.
    :param consumer_timeout: milliseconds that a delivery may stay unacknowledged where neither the consumer nor its
        queue sets a timeout; 0 is no timeout.
    :param honours_immediate: True to carry out basic.publish with `immediate`; False to refuse it, as RabbitMQ does.
    """

    channel_max: int
    frame_max: int
    heartbeat: int
    max_message_size: int
    handshake_timeout: float
    max_connections: int | None = None
    login_failure_delay: float = 0.0
    tcp_keepalive: int = 0
    send_timeout: float = 0.0
    consumer_timeout: int = 0
    honours_immediate: bool = False
