"""Numbers of connections, channels and queues that came and went, and of logins, since the broker started."""

from __future__ import annotations


class Churn:
    """Counters of one broker; they only grow."""

    def __init__(self) -> None:
        self.connections_opened = 0
        """Connections that have opened a virtual host."""
        self.connections_closed = 0
        """Connections of those that have ended."""
        self.channels_opened = 0
        self.channels_closed = 0
        self.logins: dict[str, int] = {"amqp091": 0, "http": 0}
        """Logins that succeeded, by protocol."""
        self.logins_refused: dict[str, int] = {"amqp091": 0, "http": 0}
        """Logins that were refused, by protocol."""
