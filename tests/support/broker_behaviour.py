"""Intended differences between brokers, by the server properties of the broker under test.

Warren follows RabbitMQ 4.x. The same tests run against a RabbitMQ 3.x, which judges everything that is not named here.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from pamqp.common import FieldTable

from tests.support.raw_client import PROTOCOL_HEADER

AMQP_1_0_HEADER = b"AMQP\x03\x01\x00\x00"
"""Header of AMQP 1.0 with SASL (AMQP 1.0 section 5.3.1)."""


class Behaviour(NamedTuple):
    """Behaviour of the broker under test."""

    product: str
    version: tuple[int, ...]
    """Version of RabbitMQ that the broker is or follows."""

    @property
    def is_warren(self) -> bool:
        return self.product == "Warren"

    def unknown_exchange_type(self, kind: str) -> tuple[str, int, str]:
        """Return scope, code and text of the error for an unknown exchange type: a channel error since RabbitMQ 4.0."""
        if self.version >= (4, 0):
            return "channel", 406, f"PRECONDITION_FAILED - unknown exchange type '{kind}'"
        # Or "invalid", if the word happens to be one that RabbitMQ's code uses.
        return "connection", 503, f"COMMAND_INVALID - unknown exchange type '{kind}'"

    @property
    def counts_returns_apart(self) -> bool:
        """True if basic.nack and basic.recover do not count against a delivery limit, but in x-acquired-count only."""
        return self.version >= (4, 3)

    @property
    def is_4_3(self) -> bool:
        """True for the semantics and texts of RabbitMQ 4.3, against 3.10."""
        return self.version >= (4, 3)

    @property
    def keeps_consumers_of_deleted_quorum_queues(self) -> bool:
        """True if a consumer may stay on a quorum queue that is deleted and declared again at once, and get nothing.

        RabbitMQ 3.10 subscribes it again, and its messages reach nobody. RabbitMQ 4.3 cancels it.
        """
        return not self.is_4_3 and not self.is_warren

    @property
    def delivers_after_cancel_of_active_consumer(self) -> bool:
        """True if the next consumer of a queue with a single active one gets what waits as soon as that is cancelled.

        On RabbitMQ 3.10 the next consumer gets none of it, and the queue crashes at the next publish.
        """
        return self.is_4_3 or self.is_warren

    @property
    def ignores_global_qos(self) -> bool:
        """True if basic.qos with global=true counts for each new consumer: shared limits are gone in RabbitMQ 4.3."""
        return self.is_4_3 and not self.is_warren

    @property
    def has_reply_queues(self) -> bool:
        """True if an address for direct replies names a volatile queue with errors of its own: since RabbitMQ 4.2."""
        return self.version >= (4, 2)

    @property
    def returns_late_replies(self) -> bool:
        """True if a mandatory reply to a channel that is closed is returned. RabbitMQ 4.2 drops it."""
        return self.is_warren or not self.has_reply_queues

    @property
    def removes_cc(self) -> bool:
        """True if a queue with an x-dead-letter-routing-key removes the header CC of its dead letters."""
        return self.is_warren or not self.is_4_3

    @property
    def may_mark_rejected_dead_letters(self) -> bool:
        """True if a rejected message may be marked as redelivered when its dead letter is first delivered, or not."""
        return self.is_4_3 and not self.is_warren

    @property
    def requeues_gets_last(self) -> bool:
        """True if a quorum queue requeues what a closed channel had of basic.get behind what its consumers had."""
        return self.is_4_3 and not self.is_warren

    @property
    def shows_max_age_in_milliseconds(self) -> bool:
        """True if the error for another x-max-age shows it in milliseconds, not as it was declared."""
        return self.is_4_3 and not self.is_warren

    @property
    def sets_delivery_mode_in_streams(self) -> bool:
        """True if a message that was published without delivery_mode has delivery_mode 1 when a stream delivers it."""
        return self.is_4_3 and not self.is_warren

    @property
    def shows_deletions_late(self) -> bool:
        """True if a deleted queue may be found for a moment: readers of RabbitMQ 4's metadata store follow its changes."""
        return self.version >= (4, 0) and not self.is_warren

    @property
    def explains_crashes(self) -> bool:
        """True if input that crashes RabbitMQ's reader or channel (code 541, or no answer) is refused with a reason."""
        return self.is_warren

    @property
    def explains_tuning(self) -> bool:
        """True if limits out of bounds in tune-ok get a reason. RabbitMQ closes the socket after a pause."""
        return self.is_warren

    @property
    def smallest_frame_max(self) -> int:
        """Smallest frame_max that tune-ok may contain, in bytes: RabbitMQ raised it in 4.1."""
        return 8192 if self.version >= (4, 1) and not self.is_warren else 4096

    @property
    def speaks_amqp_1_0(self) -> bool:
        """True for RabbitMQ 4, which offers AMQP 1.0 to a client that does not ask for 0-9-1."""
        return self.version >= (4, 0) and not self.is_warren

    def protocol_offered(self, header: bytes) -> bytes:
        """Return the protocol header that answers a client's header for another protocol than AMQP 0-9-1."""
        offers_1_0 = self.speaks_amqp_1_0 and not header.startswith(b"AMQP\x00\x00\x09")
        return AMQP_1_0_HEADER if offers_1_0 else PROTOCOL_HEADER

    @property
    def judges_headers_early(self) -> bool:
        """True if a body that is too large is refused at its header. RabbitMQ waits for the body."""
        return self.is_warren

    @property
    def names_the_permission(self) -> bool:
        """True if a refusal names the missing permission. Older versions name the resource only."""
        return self.version >= (4, 0)


def behaviour(server_properties: FieldTable) -> Behaviour:
    """Return the behaviour for the server properties of connection.start."""
    version = re.findall(r"\d+", str(server_properties["version"]))
    return Behaviour(str(server_properties["product"]), tuple(int(part) for part in version))
