"""Differences between the RabbitMQ versions that the broker can imitate: one field for each difference.

All other behaviour is the same in these versions, or Warren differs from all of them on purpose (docs/conformance.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from warren.wire.reply_codes import Reply


@dataclass(frozen=True)
class VersionBehaviour:
    """Behaviour of one RabbitMQ release series, where it differs from other series."""

    version: str
    """Version that connection.start announces. Clients derive from it which features they may use."""
    unknown_exchange_type: tuple[Reply, str]
    """Error for exchange.declare with an unknown type: reply code, and text with `{}` for the type.

    Since 4.0 it closes the channel only (rabbit_channel, rabbit_exchange:check_type).
    """
    allows_redeclaring_generated_names: bool
    """True if a queue with a server-generated name may be declared again by that name.

    Before 4.0, names with the prefix `amq.` were always refused.
    """
    sets_last_death_headers: bool
    """True if dead letters get the headers `x-last-death-*` beside `x-first-death-*`, as since 3.13."""
    names_missing_permission: bool
    """True if an access error names the missing permission, as in `read access to queue`."""

    refuses_binding_to_reply_queues: bool
    """True if binding a direct reply-to queue is refused with a text of its own. Before 4.2 no such queue exists."""


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
