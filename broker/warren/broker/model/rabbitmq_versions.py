"""Where RabbitMQ's versions answer differently: one row a difference, and the version that a broker follows.

Everything that is not named here is the same in both, or is Warren's own on purpose (docs/conformance.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from warren.wire.reply_codes import Reply


@dataclass(frozen=True)
class VersionBehaviour:
    """What one line of versions does."""

    version: str
    """What connection.start says: clients look at it to decide what they may use."""
    unknown_exchange_type: tuple[Reply, str]
    """The refusal of an exchange.declare: 4.0 made it the channel's affair (rabbit_channel, rabbit_exchange:check_type)."""
    allows_redeclaring_generated_names: bool
    """Whether a queue whose name the server made may be declared again by that name; before 4.0, `amq.*` never."""
    sets_last_death_headers: bool
    """Whether a dead letter says of its last death what it says of its first (`x-last-death-*`, since 3.13)."""
    names_missing_permission: bool
    """Whether a refusal says which permission was missing (`read access to queue`), or only `access to queue`."""

    refuses_binding_to_reply_queues: bool
    """Whether binding to a channel that waits for direct replies is refused as such; before 4.2 there is no such queue."""


BEHAVIOUR_BY_VERSION: Mapping[str, VersionBehaviour] = {
    "4": VersionBehaviour(
        version="4.2.0",
        unknown_exchange_type=(Reply.PRECONDITION_FAILED, "unknown exchange type '{}'"),
        allows_redeclaring_generated_names=True,
        sets_last_death_headers=True,
        refuses_binding_to_reply_queues=True,
        names_missing_permission=True,
    ),
    "3.10": VersionBehaviour(
        version="3.10.8",
        unknown_exchange_type=(Reply.COMMAND_INVALID, "unknown exchange type '{}'"),
        allows_redeclaring_generated_names=False,
        sets_last_death_headers=False,
        refuses_binding_to_reply_queues=False,
        names_missing_permission=False,
    ),
}
