"""Steps of a script, which can run on any broker regardless of its generated names and tags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from pamqp import base, commands


@dataclass(frozen=True)
class CallMethod:
    """Method on a channel of one of the two clients."""

    client: int
    channel: int
    command: base.Frame
    wait_after: float = 0.0
    """Seconds to wait before effects are observed, for messages that expire meanwhile."""

    def __str__(self) -> str:
        texts = {name: value for name, value in dict(self.command).items() if value not in (None, "", 0, {})}
        return f"{self.client}.{self.channel} {self.command.name} {texts}"


@dataclass(frozen=True)
class Publish:
    """basic.publish with its content."""

    client: int
    channel: int
    exchange: str
    key: str
    body: bytes
    properties: commands.Basic.Properties = field(default_factory=commands.Basic.Properties)
    mandatory: bool = False
    wait_after: float = 0.0
    """Seconds to wait before effects are observed, for messages that expire meanwhile."""

    def __str__(self) -> str:
        texts = {name: value for name, value in dict(self.properties).items() if value not in (None, "")}
        flag = " mandatory" if self.mandatory else ""
        return f"{self.client}.{self.channel} publish {self.body!r} to {self.exchange!r} {self.key!r}{flag} {texts}"


@dataclass(frozen=True)
class Settle:
    """Ack, nack or reject of one delivery of the script, or of an unknown one (`delivery` -1)."""

    client: int
    channel: int
    how: str
    """`ack`, `nack` or `reject`."""
    delivery: int
    """Index of the delivery in the order of the script's observations, from 0."""
    multiple: bool = False
    requeue: bool = False
    wait_after: float = 0.0
    """Seconds to wait before effects are observed, for messages that expire meanwhile."""

    def __str__(self) -> str:
        words = [
            self.how,
            f"delivery {self.delivery}",
            *["multiple"] * self.multiple,
            *["requeue"] * self.requeue,
        ]
        return f"{self.client}.{self.channel} {' '.join(words)}"


@dataclass(frozen=True)
class CloseConnection:
    """End of a connection, by connection.close or by dropping the socket; the next step that needs it reconnects."""

    client: int
    gracefully: bool = True
    wait_after: float = 0.0
    """Seconds to wait before effects are observed, for messages that expire meanwhile."""

    def __str__(self) -> str:
        return f"{self.client} {'closes its connection' if self.gracefully else 'drops its socket'}"


@dataclass(frozen=True)
class WaitSeconds:
    """Passing of time, in seconds."""

    seconds: float

    def __str__(self) -> str:
        return f"{self.seconds} s pass"


Step: TypeAlias = CallMethod | Publish | Settle | CloseConnection | WaitSeconds
Script: TypeAlias = Sequence[Step]
