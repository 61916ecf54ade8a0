"""`Queue`: the declaration of a queue as a frozen value, with safe defaults for its type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal, overload

from warren.sdk.durations import Duration, duration
from warren.sdk.errors import ConfigError
from warren.sdk.topology.queue_arguments import (
    ARGUMENTS,
    QueueType,
    check_arguments,
    check_name,
    infer_type,
    wire_value,
)

DEAD_LETTER_EXCHANGE = "warren.dead"
"""Name of the direct exchange to which queues dead-letter by default, with the name of the queue as routing key."""

DELIVERY_LIMIT = 20
UNLIMITED_DELIVERIES = 2**31 - 1
"""The delivery limit of a dead letter queue. Without one, RabbitMQ 4.0 and later use 20, and drop a message that was
delivered more often, even if it was only inspected (RabbitMQ, "Quorum Queues", Poison Message Handling)."""

Overflow = Literal["drop-head", "reject-publish", "reject-publish-dlx"]
Strategy = Literal["at-most-once", "at-least-once"]
LeaderLocator = Literal["client-local", "balanced", "random", "least-leaders"]


class _Unset(Enum):
    DEFAULT = 0


_DEFAULT: Final[Any] = _Unset.DEFAULT
"""Value of a parameter that was not given. None is a value of its own there: the queue does not get the argument."""


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue; by default durable, replicated (quorum), with a delivery limit and at-least-once dead-lettering.

    The constructor checks it: an argument that its type does not have, or a value that the broker would refuse, raises
    `ConfigError`. A type checker knows the arguments of each type. A duration is a `timedelta`,
    seconds, or a text such as `5s` or `1h30m`; it is rounded up to milliseconds.

    Below, `quorum`, `classic` or `stream` in front marks an argument of this type of queue only. A version in
    parentheses is the first RabbitMQ that has the argument; "Warren" is added if Warren's broker has it too.

    :param type: `quorum`, `classic` or `stream`. Without it a quorum queue, unless an argument says otherwise:
        priorities, `mode`, `version`, `exclusive`, `auto_delete` or `durable=False` make it classic, `max_age` and
        other arguments of streams make it a stream (`type_reason` has the argument; `warren topology plan` prints it).
    :param delivery_limit: quorum; deliveries of one message before it is dead-lettered;
        20 by default, -1 for no limit, None leaves it out.
    :param dead_letter_exchange: by default `warren.dead`, whose queue `<name>.dead` is
        declared as well; None for none. Streams have none.
    :param dead_letter_routing_key: by default the queue's name at `warren.dead`, else the message's own key.
    :param dead_letter_strategy: quorum; None chooses `at-least-once` unless `overflow` forbids it
        (RabbitMQ, "Quorum Queues", At-Least-Once Dead Lettering).
    :param message_ttl: how long a message may wait (`x-message-ttl`).
    :param expires: the broker deletes the queue after so long without use (`x-expires`); more than zero.
    :param max_length: largest number of messages; beyond it `overflow` applies.
    :param overflow: None selects `reject-publish` if at-least-once
        dead-lettering needs it, otherwise the broker's default.
    :param max_priority: classic; highest priority, 0 to 255 (`x-max-priority`); 10 is usual.
    :param mode: classic; `lazy` keeps messages on disk (RabbitMQ ignores it since 3.12, where every queue does).
    :param version: classic; 1 or 2 (RabbitMQ 4 supports only 2).
    :param leader_locator: rule for the node on which the leader starts.
    :param initial_group_size: quorum; initial number of replicas.
        `target_group_size`: number of replicas to grow to (3.13).
    :param member_placement_tag: quorum; tag of the nodes that may have replicas (4.3).
    :param max_in_memory_length: quorum; without effect since 3.10, as `max_in_memory_bytes`.
    :param consumer_timeout: quorum; how long a delivery may stay unacknowledged (4.3; Warren).
    :param consumer_disconnected_timeout: quorum; how long a lost consumer keeps its messages (4.3).
    :param delayed_retry: quorum; which returned messages wait before they are delivered again (4.3;
        Warren), between `delayed_retry_min` and `delayed_retry_max`.
    :param max_age: stream; the broker may remove older messages; whole seconds. It
        removes whole segments, of `max_segment_size_bytes`.
    :param filter_size_bytes: stream; size of the Bloom filter of a chunk, 16 to 255 bytes
        (3.13). `initial_cluster_size`: number of replicas.
    :param arguments: further arguments, sent unchanged; they take precedence, and only the broker checks them.
    :raises ConfigError: for an argument or value as described above.
    """

    name: str
    type: QueueType = _DEFAULT
    durable: bool = True
    exclusive: bool = False
    auto_delete: bool = False
    delivery_limit: int | None = _DEFAULT
    dead_letter_exchange: str | None = _DEFAULT
    dead_letter_routing_key: str | None = None
    message_ttl: timedelta | None = None
    expires: timedelta | None = None
    max_length: int | None = None
    max_length_bytes: int | None = None
    overflow: Overflow | None = None
    single_active_consumer: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    dead_letter_strategy: Strategy | None = None
    leader_locator: LeaderLocator | None = None
    max_priority: int | None = None
    mode: Literal["default", "lazy"] | None = None
    version: Literal[1, 2] | None = None
    initial_group_size: int | None = None
    target_group_size: int | None = None
    member_placement_tag: str | None = None
    max_in_memory_length: int | None = None
    max_in_memory_bytes: int | None = None
    consumer_timeout: timedelta | None = None
    consumer_disconnected_timeout: timedelta | None = None
    delayed_retry: Literal["disabled", "all", "failed", "returned"] | None = None
    delayed_retry_min: timedelta | None = None
    delayed_retry_max: timedelta | None = None
    max_age: timedelta | None = None
    max_segment_size_bytes: int | None = None
    filter_size_bytes: int | None = None
    initial_cluster_size: int | None = None
    type_reason: str = field(default="", init=False, repr=False, compare=False)
    """The argument that made the queue classic or a stream, if `type` was not given."""

    if TYPE_CHECKING:
        # The generated __init__ accepts every argument for every type; the overloads limit each type to its own.

        @overload
        def __init__(
            self,
            name: str,
            type: Literal["quorum"] = ...,
            *,
            delivery_limit: int | None = ...,
            dead_letter_exchange: str | None = ...,
            dead_letter_routing_key: str | None = ...,
            dead_letter_strategy: Strategy | None = ...,
            message_ttl: Duration | None = ...,
            expires: Duration | None = ...,
            max_length: int | None = ...,
            max_length_bytes: int | None = ...,
            overflow: Literal["drop-head", "reject-publish"] | None = ...,
            single_active_consumer: bool = ...,
            leader_locator: LeaderLocator | None = ...,
            initial_group_size: int | None = ...,
            target_group_size: int | None = ...,
            member_placement_tag: str | None = ...,
            max_in_memory_length: int | None = ...,
            max_in_memory_bytes: int | None = ...,
            consumer_timeout: Duration | None = ...,
            consumer_disconnected_timeout: Duration | None = ...,
            delayed_retry: Literal["disabled", "all", "failed", "returned"] | None = ...,
            delayed_retry_min: Duration | None = ...,
            delayed_retry_max: Duration | None = ...,
            durable: Literal[True] = ...,
            arguments: Mapping[str, Any] = ...,
        ) -> None: ...

        @overload
        def __init__(
            self,
            name: str,
            type: Literal["classic"] = ...,
            *,
            durable: bool = ...,
            exclusive: bool = ...,
            auto_delete: bool = ...,
            dead_letter_exchange: str | None = ...,
            dead_letter_routing_key: str | None = ...,
            message_ttl: Duration | None = ...,
            expires: Duration | None = ...,
            max_length: int | None = ...,
            max_length_bytes: int | None = ...,
            overflow: Overflow | None = ...,
            single_active_consumer: bool = ...,
            max_priority: int | None = ...,
            mode: Literal["default", "lazy"] | None = ...,
            version: Literal[1, 2] | None = ...,
            leader_locator: LeaderLocator | None = ...,
            arguments: Mapping[str, Any] = ...,
        ) -> None: ...

        @overload
        def __init__(
            self,
            name: str,
            type: Literal["stream"] = ...,
            *,
            max_length_bytes: int | None = ...,
            max_age: Duration | None = ...,
            max_segment_size_bytes: int | None = ...,
            filter_size_bytes: int | None = ...,
            initial_cluster_size: int | None = ...,
            leader_locator: LeaderLocator | None = ...,
            durable: Literal[True] = ...,
            arguments: Mapping[str, Any] = ...,
        ) -> None: ...

        def __init__(self, name: str, type: QueueType = ..., **arguments: Any) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", dict(self.arguments))
        check_name("a queue", self.name)
        what = f"queue {self.name!r}"
        for argument in ARGUMENTS:
            if argument.form is timedelta and getattr(self, argument.field) is not None:
                length = duration(getattr(self, argument.field), f"{what}: {argument.field}")
                object.__setattr__(self, argument.field, length)
        if not self.name:
            raise ConfigError(
                "a queue needs a name: one that the broker names cannot be declared again after a reconnect"
            )
        if self.name.startswith("amq."):
            raise ConfigError(f"{what}: names that begin with amq. are the broker's own")
        if self.type is _DEFAULT:
            kind, reason = infer_type(self._values())
            object.__setattr__(self, "type", kind)
            object.__setattr__(self, "type_reason", reason)
        if self.delivery_limit is _DEFAULT:
            object.__setattr__(self, "delivery_limit", DELIVERY_LIMIT if self.type == "quorum" else None)
        if self.dead_letter_exchange is _DEFAULT:
            object.__setattr__(
                self, "dead_letter_exchange", None if self.type == "stream" else DEAD_LETTER_EXCHANGE
            )
        check_arguments(what, self.type, self._values())

    @property
    def dead_letter_key(self) -> str | None:
        """The routing key of dead letters of this queue; None keeps the key of the message."""
        if self.dead_letter_routing_key is None and self.dead_letter_exchange == DEAD_LETTER_EXCHANGE:
            return self.name
        return self.dead_letter_routing_key

    @property
    def dead_letter_queue(self) -> Queue | None:
        """The queue `<name>.dead` if this queue dead-letters to `warren.dead`, otherwise None; classic if this queue
        is classic.
        """
        if self.dead_letter_exchange != DEAD_LETTER_EXCHANGE:
            return None
        name = dead_letter_queue_name(self.name)
        if self.type == "classic":
            return Queue(name, type="classic", dead_letter_exchange=None)
        return Queue(name, delivery_limit=UNLIMITED_DELIVERIES, dead_letter_exchange=None)

    @property
    def is_dead_lettered_by_broker(self) -> bool:
        """True if the broker dead-letters a rejected message of this queue; otherwise it drops the message."""
        return "x-dead-letter-exchange" in self.wire_arguments()

    @property
    def dead_letters_at_least_once(self) -> bool:
        """True if the broker keeps dead letters until another queue has confirmed them."""
        safe = self.overflow in (None, "reject-publish") and self.dead_letter_strategy != "at-most-once"
        return self.dead_letter_exchange is not None and self.type == "quorum" and safe

    def wire_arguments(self) -> dict[str, Any]:
        """Return the arguments of `queue.declare`, by their AMQP names."""
        values = self._values()
        if self.dead_letter_exchange is not None:
            values["dead_letter_routing_key"] = self.dead_letter_key
            if self.dead_letters_at_least_once:
                values["dead_letter_strategy"], values["overflow"] = "at-least-once", "reject-publish"
        arguments: dict[str, Any] = {"x-queue-type": self.type}
        for argument in ARGUMENTS:
            value = values[argument.field]
            if value is not None and value is not False:
                arguments[argument.wire] = wire_value(argument, value)
        return {**arguments, **self.arguments}

    def _values(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}


def dead_letter_queue_name(queue: str) -> str:
    """Return the name of the dead letter queue of a queue."""
    return f"{queue}.dead"
