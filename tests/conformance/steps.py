"""What a script consists of: steps that can be played on any broker, whatever names and tags it gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from pamqp import base, commands


@dataclass(frozen=True)
class Say:
    """A method on a channel of one of the two connections."""

    who: int
    channel: int
    command: base.Frame

    def __str__(self) -> str:
        said = {name: value for name, value in dict(self.command).items() if value not in (None, "", 0, {})}
        return f"{self.who}.{self.channel} {self.command.name} {said}"


@dataclass(frozen=True)
class Publish:
    """basic.publish with its content."""

    who: int
    channel: int
    exchange: str
    key: str
    body: bytes
    properties: commands.Basic.Properties = field(default_factory=commands.Basic.Properties)
    mandatory: bool = False
    then_pass: float = 0.0
    """So many seconds pass before anybody looks: for what expires in less."""

    def __str__(self) -> str:
        said = {name: value for name, value in dict(self.properties).items() if value not in (None, "")}
        flag = " mandatory" if self.mandatory else ""
        return (
            f"{self.who}.{self.channel} publish {self.body!r} to {self.exchange!r} {self.key!r}{flag} {said}"
        )


@dataclass(frozen=True)
class Settle:
    """Ack, nack or reject one delivery of this script, or one that there never was (`delivery` -1)."""

    who: int
    channel: int
    how: str
    """`ack`, `nack` or `reject`."""
    delivery: int
    """Which one: deliveries are counted from 0, in the order of a script's observations."""
    multiple: bool = False
    requeue: bool = False

    def __str__(self) -> str:
        words = [
            self.how,
            f"delivery {self.delivery}",
            *["multiple"] * self.multiple,
            *["requeue"] * self.requeue,
        ]
        return f"{self.who}.{self.channel} {' '.join(words)}"


@dataclass(frozen=True)
class Leave:
    """End a connection, with connection.close or by dropping the socket; the next step that needs it connects anew."""

    who: int
    politely: bool = True

    def __str__(self) -> str:
        return f"{self.who} {'closes its connection' if self.politely else 'drops its socket'}"


@dataclass(frozen=True)
class Pass:
    """So much time passes, in seconds."""

    seconds: float

    def __str__(self) -> str:
        return f"{self.seconds} s pass"


Step: TypeAlias = Say | Publish | Settle | Leave | Pass
Script: TypeAlias = Sequence[Step]
