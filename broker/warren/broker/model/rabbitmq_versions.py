"""Where RabbitMQ's versions answer differently: one row a difference, and the version that a broker follows.

Everything that is not named here is the same in both, or is Warren's own on purpose (docs/conformance.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from warren.wire.reply_codes import Reply


@dataclass(frozen=True)
class Compat:
    """What one line of versions does."""

    version: str
    """What connection.start says: clients look at it to decide what they may use."""
    unknown_exchange_type: tuple[Reply, str]
    """The refusal of an exchange.declare: 4.0 made it the channel's affair (rabbit_channel, rabbit_exchange:check_type)."""
    takes_its_own_names: bool
    """Whether a queue whose name the server made may be declared again by that name; before 4.0, `amq.*` never."""
    last_deaths: bool
    """Whether a dead letter says of its last death what it says of its first (`x-last-death-*`, since 3.13)."""
    names_the_permission: bool
    """Whether a refusal says which permission was missing (`read access to queue`), or only `access to queue`."""

    explains_replies: bool
    """Whether binding to a channel that waits for direct replies is refused as such; before 4.2 there is no such queue."""


COMPAT: Mapping[str, Compat] = {
    "4": Compat(
        version="4.2.0",
        unknown_exchange_type=(Reply.PRECONDITION_FAILED, "unknown exchange type '{}'"),
        takes_its_own_names=True,
        last_deaths=True,
        explains_replies=True,
        names_the_permission=True,
    ),
    "3.10": Compat(
        version="3.10.8",
        unknown_exchange_type=(Reply.COMMAND_INVALID, "unknown exchange type '{}'"),
        takes_its_own_names=False,
        last_deaths=False,
        explains_replies=False,
        names_the_permission=False,
    ),
}
