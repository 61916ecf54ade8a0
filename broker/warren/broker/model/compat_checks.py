"""Portability checks: find uses of features that Warren has and RabbitMQ 4.3 does not have or denies by default.

With `strict` such a use is refused as RabbitMQ refuses it; otherwise each feature is logged once.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from warren.broker.model.argument_checks import argument_fields
from warren.broker.model.deduplication import ARGUMENTS as DEDUPLICATION
from warren.broker.model.exchange.exchange_types import DEDUPLICATING, DELAYED
from warren.broker.model.queue.queue_arguments import QUORUM_ONLY, QueueArguments
from warren.wire.reply_codes import AmqpError, Reply

logger = logging.getLogger(__name__)

DEPRECATED_FEATURE_TEXT = (
    "Feature `{}` is deprecated.\nBy default, this feature is not permitted anymore.\nThe feature will be removed from a "
    "future major RabbitMQ version, regardless of the configuration; actual version to be determined.\nTo continue using "
    "this feature when it is not permitted by default, set the following parameter in your configuration:\n"
    '    "deprecated_features.permit.{} = true"'
)
"""RabbitMQ's error text for a feature that is denied by default (rabbit_deprecated_features)."""
FRAME_MIN = 8192
"""Smallest frame_max that RabbitMQ accepts since 4.1."""


@dataclass(frozen=True)
class PortabilityRule:
    """One feature that RabbitMQ 4.3 refuses or ignores, and Warren supports."""

    operation: str
    """Description of the operation that uses the feature, such as `basic.qos with global=true`, for the log event."""
    code: Reply | None
    """Reply code with which RabbitMQ refuses the operation; None if RabbitMQ ignores the feature or permits it.

    For an extension of Warren's, the code with which `strict` refuses it.
    """
    text: str
    """Reply text of that refusal. Each `{}` is replaced by a value of the operation, such as the name of an argument."""
    source: str
    """Source of the rule: a module or the release notes of RabbitMQ."""
    advice: str
    """Advice for a portable alternative, for the log event."""
    is_permitted: bool = False
    """True if RabbitMQ accepts the operation with its meaning, but calls the feature deprecated."""
    is_extension: bool = False
    """True if the feature is Warren's own: RabbitMQ takes the operation without its meaning, and `strict` refuses it."""

    @property
    def in_rabbitmq(self) -> str:
        """Behaviour of RabbitMQ, for the log event: the reply code, `permits_it` or `ignores_it`."""
        if self.code is not None and not self.is_extension:
            return str(int(self.code))
        return "permits_it" if self.is_permitted else "ignores_it"


PORTABILITY_RULES: Mapping[str, PortabilityRule] = {
    "transient_queue": PortabilityRule(
        "queue.declare, neither durable nor exclusive",
        None,
        "",
        "deprecated feature transient_nonexcl_queues, permitted by default; a later version will refuse it",
        "declare it durable (with x-expires, if it is to go by itself) or exclusive",
        is_permitted=True,
    ),
    "global_qos": PortabilityRule(
        "basic.qos with global=true",
        None,
        "",
        "rabbit_channel.erl: it counts for each new consumer, as global=false does",
        "use global=false",
    ),
    "conditional_delete": PortabilityRule(
        "queue.delete of a quorum queue with if-empty or if-unused",
        Reply.NOT_IMPLEMENTED,
        "cannot delete {}. queue.delete operations with {} flag set are not supported by quorum queues",
        "observed on 4.3.6",
        "delete it without the flag, after you have looked at its messages and consumers",
    ),
    "master_locator": PortabilityRule(
        "queue.declare with x-queue-master-locator",
        Reply.INTERNAL_ERROR,
        DEPRECATED_FEATURE_TEXT.format(*["queue_master_locator"] * 2),
        "rabbit_classic_queue.erl",
        "use x-queue-leader-locator, or nothing",
    ),
    "quorum_argument": PortabilityRule(
        "queue.declare of a classic queue with x-delivery-limit, x-consumer-timeout or x-delayed-retry-*",
        Reply.PRECONDITION_FAILED,
        "invalid arg '{}' for {} of queue type rabbit_classic_queue",
        "rabbit_classic_queue.erl, rabbit_queue_type.erl",
        "declare it with x-queue-type=quorum",
    ),
    "queue_mode": PortabilityRule(
        "queue.declare with x-queue-mode",
        None,
        "",
        "the release notes of 4.3.0 call it refused; rabbit_classic_queue.erl takes it and does nothing",
        "leave it out",
    ),
    "mirrors": PortabilityRule(
        "queue.declare with x-ha-policy",
        None,
        "",
        "release notes of 4.0: mirrored queues are gone",
        "declare it with x-queue-type=quorum where the queue has to be replicated",
    ),
    "mirror_policy": PortabilityRule(
        "set_policy with ha-mode and its like",
        Reply.PRECONDITION_FAILED,
        "{} are not recognised policy settings",
        "rabbit_policies.erl: what mirrored queues needed is gone",
        "declare the queues with x-queue-type=quorum where they have to be replicated",
    ),
    "limit_policy": PortabilityRule(
        "set_policy with delivery-limit for classic queues",
        None,
        "",
        "rabbit_classic_queue.erl: such a policy governs no classic queue",
        "set it for quorum queues: --apply-to quorum_queues",
    ),
    "deduplication": PortabilityRule(
        "declaring with arguments of deduplication",
        None,
        "",
        "a plugin's of a third party; without it unknown arguments are ignored",
        "make the consumers idempotent",
    ),
    "plugin_exchange": PortabilityRule(
        "exchange.declare of the type x-delayed-message or x-message-deduplication",
        Reply.PRECONDITION_FAILED,
        "unknown exchange type '{}'",
        "rabbit_exchange.erl; plugins of third parties that do not come with RabbitMQ",
        "delay by a queue with a TTL and a dead letter exchange",
    ),
    "consistent_hash_exchange": PortabilityRule(
        "exchange.declare of the type x-consistent-hash",
        Reply.PRECONDITION_FAILED,
        "unknown exchange type '{}'",
        "observed on 4.3.6: a plugin that comes with RabbitMQ has it",
        "enable the plugin rabbitmq_consistent_hash_exchange on RabbitMQ",
    ),
    "random_exchange": PortabilityRule(
        "exchange.declare of the type x-random",
        Reply.PRECONDITION_FAILED,
        "invalid exchange type '{}'",
        "observed on 4.3.6: a plugin that comes with RabbitMQ has it",
        "enable the plugin rabbitmq_random_exchange on RabbitMQ, or use x-local-random",
    ),
    "recent_history_exchange": PortabilityRule(
        "exchange.declare of the type x-recent-history",
        Reply.PRECONDITION_FAILED,
        "unknown exchange type '{}'",
        "observed on 4.3.6: a plugin that comes with RabbitMQ has it",
        "enable the plugin rabbitmq_recent_history_exchange on RabbitMQ",
    ),
    "filter_expression": PortabilityRule(
        "basic.consume of a stream with x-warren-filter",
        Reply.PRECONDITION_FAILED,
        "invalid arg '{}' for {}: it is an extension of Warren's, and no other broker filters by it",
        "RabbitMQ ignores unknown arguments of consumers: the client would get all messages",
        "use x-stream-filter, and filter again in the client",
        is_extension=True,
    ),
    "publishing_id": PortabilityRule(
        "basic.publish with x-warren-producer and x-warren-publishing-id",
        Reply.PRECONDITION_FAILED,
        "headers x-warren-producer and x-warren-publishing-id are an extension of Warren's: no other broker recognises "
        "duplicates by them",
        "RabbitMQ ignores unknown headers: its streams would hold the duplicates; it knows publishing ids in its stream "
        "protocol only",
        "make the consumers idempotent",
        is_extension=True,
    ),
    "small_frames": PortabilityRule(
        "connection.tune-ok with a frame_max below 8192",
        Reply.NOT_ALLOWED,
        "negotiated frame_max = {} is lower than the minimum allowed value (8192)",
        "release notes of 4.1; RabbitMQ writes the text to its log only, and closes the socket",
        "tune at least 8192",
    ),
}

PLUGIN_EXCHANGES: Mapping[bytes, str] = {
    b"x-consistent-hash": "consistent_hash_exchange",
    b"x-random": "random_exchange",
    b"x-recent-history": "recent_history_exchange",
}
"""Rules of the exchange types of plugins that come with RabbitMQ. Since 4.3, x-modulus-hash needs none."""


class PortabilityChecks:
    """Checks of operations for features that RabbitMQ 4.3 refuses or ignores, with the settings of one broker.

    They run after an operation has passed the broker's own checks.
    """

    def __init__(self, strict: bool) -> None:
        """:param strict: True to refuse what RabbitMQ 4.3 refuses, with its code and text; False to log it only."""
        self.strict = strict
        self._logged: set[str] = set()

    @classmethod
    def silent(cls) -> PortabilityChecks:
        """Return checks that never log, for the trial run of an import of definitions on a copy of the broker.

        They refuse nothing until `strict` is set.
        """
        portability = cls(strict=False)
        portability._logged.update(PORTABILITY_RULES)
        return portability

    def was_used(self, name: str) -> bool:
        """Return True if a feature was used since the broker started.

        :param name: a key of `PORTABILITY_RULES`; no other feature is noticed.
        """
        return name in self._logged

    def check(self, name: str, *values: object) -> bool:
        """Check the use of a feature: log it once, and refuse it if `strict` is set and RabbitMQ refuses it.

        Return True if `strict` is set: the feature must then have the effect that it has in RabbitMQ, often none.

        :param name: a key of `PORTABILITY_RULES`.
        :param values: values for the `{}` in the rule's text.
        :raises AmqpError: with RabbitMQ's code and text, if the use is refused.
        """
        rule = PORTABILITY_RULES[name]
        if name not in self._logged:
            self._logged.add(name)
            logger.warning(
                "event=portability.feature_used operation=%r rabbitmq_43=%s advice=%r",
                rule.operation,
                rule.in_rabbitmq,
                rule.advice,
            )
        if self.strict and rule.code is not None:
            raise AmqpError(rule.code, rule.text.format(*values))
        return self.strict

    def check_queue(
        self, described: str, durable: bool, exclusive: bool, raw: bytes, arguments: QueueArguments
    ) -> None:
        """Check a new queue for features that RabbitMQ 4.3 refuses or ignores, and log the first use of each.

        :param described: the queue as error texts name it, `queue 'q' in vhost '/'`.
        :param raw: the encoded arguments, from which `arguments` were parsed.
        :raises AmqpError: if the checks are strict and RabbitMQ refuses the declaration.
        """
        fields = argument_fields(raw)
        if not arguments.quorum and not arguments.stream:
            for name in QUORUM_ONLY:
                if name in fields:
                    self.check("quorum_argument", name, described)
        if "x-queue-master-locator" in fields:
            self.check("master_locator")
        if not durable and not exclusive:
            self.check("transient_queue")
        if "x-queue-mode" in fields:
            self.check("queue_mode")
        if "x-ha-policy" in fields:
            self.check("mirrors")
        if any(name in fields for name in DEDUPLICATION):
            self.check("deduplication")

    def check_exchange(self, kind: bytes, raw: bytes) -> None:
        """Check a new exchange for features that RabbitMQ 4.3 refuses or ignores, and log the first use of each.

        :param kind: the exchange type.
        :param raw: the encoded arguments.
        :raises AmqpError: if the checks are strict and RabbitMQ refuses the declaration.
        """
        if kind in (DELAYED, DEDUPLICATING):
            self.check("plugin_exchange", kind.decode())
        elif kind in PLUGIN_EXCHANGES:
            self.check(PLUGIN_EXCHANGES[kind], kind.decode())
        elif any(name in argument_fields(raw) for name in DEDUPLICATION):
            self.check("deduplication")
