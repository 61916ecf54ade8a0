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
    names_both_queue_types: bool
    """True if the error for another queue type names both types, as in `received 'classic' but current is 'quorum'`."""
    names_streams_once: bool
    """True if errors of basic.consume on streams do not repeat the word queue, as in `stream queue 's'`."""
    streams_take_returns: bool
    """True if basic.nack and basic.reject of a stream's message settle it. Before 4.3 they were refused."""
    lists_blocked_consumers: bool
    """True if a consumer of a classic queue at its prefetch limit has the activity status `blocked`."""
    sets_last_death_headers: bool
    """True if dead letters get the headers `x-last-death-*` beside `x-first-death-*`, as since 3.13."""
    names_missing_permission: bool
    """True if an access error names the missing permission, as in `read access to queue`."""
    checks_passive_declares: bool
    """True if a passive declaration needs one permission on the queue or exchange, as in 4.3. Before, it needed none."""

    counts_returns_apart: bool
    """True if basic.nack and basic.recover with requeue do not count against a delivery limit, and x-acquired-count is set.

    Before 4.3, each requeue counted.
    """
    has_reply_queues: bool
    """True if an address for direct replies names a volatile queue, with errors of its own, as since 4.2."""
    knows_mirrored_queues: bool
    """True if `x-cancel-on-ha-failover` is for consumers of mirrored queues, and refused for streams, as before 4.0."""
    higher_priority_takes_over: bool
    """True if a consumer of a quorum queue becomes the single active one when its priority is higher, as since 4.0."""
    channel_limit_pauses_automatic: bool
    """True if consumers with automatic acknowledgement get nothing while the prefetch limit of their channel is reached.

    Before 4.3, which has no such limit, their deliveries do not count against it (rabbit_limiter, can_send).
    """
    suspends_timed_out_consumers: bool
    """True if a consumer of a quorum queue that exceeds its acknowledgement timeout is suspended and sent basic.cancel.

    Its overdue messages are requeued, and its channel stays open. Before 4.3, the channel was closed.
    """
    exports_queue_types: bool
    """True if definitions have the queue type among the arguments of each queue, and the default one of each virtual host.

    They then have limits as an object, and description and tags of a virtual host in its metadata only. Versions before
    3.12 do not read these from the metadata.
    """


RABBITMQ_4_3 = VersionBehaviour(
    version="4.3.6",
    unknown_exchange_type=(Reply.PRECONDITION_FAILED, "unknown exchange type '{}'"),
    streams_take_returns=True,
    lists_blocked_consumers=True,
    names_both_queue_types=True,
    names_streams_once=True,
    sets_last_death_headers=True,
    counts_returns_apart=True,
    has_reply_queues=True,
    knows_mirrored_queues=False,
    suspends_timed_out_consumers=True,
    channel_limit_pauses_automatic=False,
    higher_priority_takes_over=True,
    names_missing_permission=True,
    checks_passive_declares=True,
    exports_queue_types=True,
)
RABBITMQ_3_10 = VersionBehaviour(
    version="3.10.8",
    unknown_exchange_type=(Reply.COMMAND_INVALID, "unknown exchange type '{}'"),
    streams_take_returns=False,
    lists_blocked_consumers=False,
    names_both_queue_types=False,
    names_streams_once=False,
    sets_last_death_headers=False,
    counts_returns_apart=False,
    has_reply_queues=False,
    knows_mirrored_queues=True,
    suspends_timed_out_consumers=False,
    channel_limit_pauses_automatic=True,
    higher_priority_takes_over=False,
    names_missing_permission=False,
    checks_passive_declares=False,
    exports_queue_types=False,
)
BEHAVIOUR_BY_VERSION: Mapping[str, VersionBehaviour] = {
    "4.3": RABBITMQ_4_3,
    "3.10": RABBITMQ_3_10,
    # The newest 4.x, as the setting was called before versions of 4 differed.
    "4": RABBITMQ_4_3,
}
"""Behaviour by the value of the setting `compat`."""
