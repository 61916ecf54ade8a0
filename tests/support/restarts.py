"""Sessions over restarts: stop or crash a broker, start it again and reconnect."""

from __future__ import annotations

from typing import Any

from tests.support.blocking_client import Channel, Connection
from tests.support.in_process_broker import InProcessBroker

PERSISTENT: dict[str, Any] = {"delivery_mode": 2}


class RestartableSession:
    """A channel that is opened again after each restart."""

    def __init__(self, broker: InProcessBroker) -> None:
        self.broker = broker
        self.connect()

    def connect(self) -> None:
        self.connection = Connection(self.broker.url)
        self.channel = self.connection.channel()
        self.channel.confirm()
        self.sent = 0

    def publish(self, queue: str, *bodies: bytes, **properties: Any) -> None:
        """Publish and wait for the confirms."""
        for body in bodies:
            self.channel.publish(queue, body, **{**PERSISTENT, **properties})
        self.sent += len(bodies)
        self.channel.settled_until(self.sent)

    def sync(self) -> None:
        """Wait until earlier acknowledgements are on disk: a later publish is confirmed then."""
        self.channel.declare("sync", durable=True)
        self.publish("sync", b"")

    def restart(self) -> None:
        """Stop the broker cleanly and start it again."""
        self.connection.close()
        self.broker.restart()
        self.connect()

    def crash(self) -> None:
        """Restart from the current files, with deliveries unacknowledged."""
        self.broker.crash()
        self.connection.abort()
        self.connect()


ENDS = ("restart", "crash")
"""Both ways to restart; durability must hold for each."""


def end(session: RestartableSession, how: str) -> None:
    getattr(session, how)()


def flags(channel: Channel, queue: str) -> list[tuple[bytes, bool]]:
    found = []
    while (message := channel.get(queue, no_ack=True)) is not None:
        found.append((message.body, message.redelivered))
    return found
