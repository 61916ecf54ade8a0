"""Numbers of connections and channels that came and went, and of logins, since the broker started."""

from __future__ import annotations


class Churn:
    """Counters of one broker; they only grow, except for logins, which an operator may reset."""

    def __init__(self) -> None:
        self.connections_opened = 0
        """Connections that have opened a virtual host."""
        self.connections_closed = 0
        """Connections of those that have ended."""
        self.bytes_received = 0
        """Bytes that the sockets of connections that have ended have received, as far as the system counts them."""
        self.send_timeouts = 0
        """Connections that were ended because their clients had stopped reading."""
        self.channels_opened = 0
        self.channels_closed = 0
        self.logins: dict[str, int] = {"amqp091": 0, "http": 0}
        """Logins that succeeded, by protocol; since `forget_logins`, if that was later than the start."""
        self.logins_refused: dict[str, int] = {"amqp091": 0, "http": 0}
        """Logins that were refused, by protocol, as above."""

    def forget_logins(self) -> None:
        """Count logins anew, from 0."""
        for counts in (self.logins, self.logins_refused):
            counts.update(dict.fromkeys(counts, 0))
