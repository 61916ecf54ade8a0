"""Queue arguments of RabbitMQ 3.10 to 4.3: the types of queues that have them, and their values.

Taken from RabbitMQ's own table (`rabbit_amqqueue:declare_args`, `capabilities` of each queue type) and
https://www.rabbitmq.com/docs/queues#optional-arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias

from warren.sdk.choices import shown_value
from warren.sdk.durations import milliseconds
from warren.sdk.errors import ConfigError

QueueType: TypeAlias = Literal["quorum", "classic", "stream"]

TEN_YEARS_MS: Final = 315_360_000_000
"""RabbitMQ's upper bound of durations, in milliseconds."""
LARGEST: Final = 2**63 - 1
NAME_BYTES: Final = 255

CLASSIC: Final[tuple[QueueType, ...]] = ("classic",)
QUORUM: Final[tuple[QueueType, ...]] = ("quorum",)
STREAM: Final[tuple[QueueType, ...]] = ("stream",)
MESSAGES: Final[tuple[QueueType, ...]] = ("quorum", "classic")
ALL: Final[tuple[QueueType, ...]] = ("quorum", "classic", "stream")


@dataclass(frozen=True, slots=True)
class QueueArgument:
    """Description of one queue argument and its allowed values.

    Versions of RabbitMQ are pairs of (major, minor).

    :param field: its field in `Queue`.
    :param wire: its AMQP name, such as `x-message-ttl`.
    :param types: the types of queues that have it.
    :param form: Python type of its values.
    :param lowest: smallest number; of a duration, milliseconds.
    :param highest: greatest number; of a duration, milliseconds.
    :param words: the allowed texts; empty if all are allowed.
    :param since: the first version of RabbitMQ that supports it.
    :param classic_since: the first version of RabbitMQ whose classic queues support it.
    :param idle_since: the first version of RabbitMQ that ignores or refuses it; None if all later ones support it.
    """

    field: str
    wire: str
    types: tuple[QueueType, ...]
    form: type[int | str | bool | timedelta] = int
    lowest: int = 0
    highest: int = LARGEST
    words: tuple[str, ...] = ()
    since: tuple[int, int] = (3, 10)
    idle_since: tuple[int, int] | None = None
    classic_since: tuple[int, int] = (3, 10)

    def known_since(self, kind: QueueType) -> tuple[int, int]:
        """Return the first version of RabbitMQ, as (major, minor), whose queues of this type support the argument."""
        return max(self.since, self.classic_since) if kind == "classic" else self.since


ARGUMENTS: Final = (
    QueueArgument("delivery_limit", "x-delivery-limit", QUORUM, lowest=-1),
    QueueArgument("dead_letter_exchange", "x-dead-letter-exchange", MESSAGES, str),
    QueueArgument("dead_letter_routing_key", "x-dead-letter-routing-key", MESSAGES, str),
    QueueArgument(
        "dead_letter_strategy", "x-dead-letter-strategy", QUORUM, str, words=("at-most-once", "at-least-once")
    ),
    QueueArgument("message_ttl", "x-message-ttl", MESSAGES, timedelta, highest=TEN_YEARS_MS),
    QueueArgument("expires", "x-expires", MESSAGES, timedelta, lowest=1, highest=TEN_YEARS_MS),
    QueueArgument("max_length", "x-max-length", MESSAGES),
    QueueArgument("max_length_bytes", "x-max-length-bytes", ALL),
    QueueArgument(
        "overflow", "x-overflow", MESSAGES, str, words=("drop-head", "reject-publish", "reject-publish-dlx")
    ),
    QueueArgument("single_active_consumer", "x-single-active-consumer", MESSAGES, bool),
    QueueArgument("max_priority", "x-max-priority", CLASSIC, highest=255),
    QueueArgument("mode", "x-queue-mode", CLASSIC, str, words=("default", "lazy"), idle_since=(3, 12)),
    QueueArgument("version", "x-queue-version", CLASSIC, lowest=1, highest=2, idle_since=(4, 0)),
    QueueArgument(
        "leader_locator",
        "x-queue-leader-locator",
        ALL,
        str,
        words=("client-local", "balanced", "random", "least-leaders"),
        classic_since=(4, 0),
    ),
    QueueArgument("initial_group_size", "x-quorum-initial-group-size", QUORUM, lowest=1),
    QueueArgument("target_group_size", "x-quorum-target-group-size", QUORUM, lowest=1, since=(3, 13)),
    QueueArgument("member_placement_tag", "x-member-placement-tag", QUORUM, str, since=(4, 3)),
    QueueArgument("max_in_memory_length", "x-max-in-memory-length", QUORUM, idle_since=(3, 10)),
    QueueArgument("max_in_memory_bytes", "x-max-in-memory-bytes", QUORUM, idle_since=(3, 10)),
    QueueArgument("consumer_timeout", "x-consumer-timeout", QUORUM, timedelta, since=(4, 3)),
    QueueArgument(
        "consumer_disconnected_timeout", "x-consumer-disconnected-timeout", QUORUM, timedelta, since=(4, 3)
    ),
    QueueArgument(
        "delayed_retry",
        "x-delayed-retry-type",
        QUORUM,
        str,
        words=("disabled", "all", "failed", "returned"),
        since=(4, 3),
    ),
    QueueArgument("delayed_retry_min", "x-delayed-retry-min", QUORUM, timedelta, lowest=1, since=(4, 3)),
    QueueArgument("delayed_retry_max", "x-delayed-retry-max", QUORUM, timedelta, lowest=1, since=(4, 3)),
    QueueArgument("max_age", "x-max-age", STREAM, timedelta, lowest=1),
    QueueArgument("max_segment_size_bytes", "x-stream-max-segment-size-bytes", STREAM, highest=3_000_000_000),
    QueueArgument(
        "filter_size_bytes", "x-stream-filter-size-bytes", STREAM, lowest=16, highest=255, since=(3, 13)
    ),
    QueueArgument("initial_cluster_size", "x-initial-cluster-size", STREAM, lowest=1),
)
"""All arguments for which `Queue` has a field, in the order in which they are encoded."""

MAKES_CLASSIC: Final = ("max_priority", "mode", "version")
MAKES_STREAM: Final = ("max_age", "max_segment_size_bytes", "filter_size_bytes", "initial_cluster_size")


def infer_type(fields: Mapping[str, Any]) -> tuple[QueueType, str]:
    """Return the type of a queue that does not name one, from its arguments, and the field that decided it.

    The type is quorum, with an empty text for the field, if no field demands another type.

    :param fields: values of the `Queue`, by field.
    """
    temporary = {
        "exclusive=True": fields["exclusive"],
        "auto_delete=True": fields["auto_delete"],
        "durable=False": not fields["durable"],
        "overflow='reject-publish-dlx'": fields["overflow"] == "reject-publish-dlx",
    }
    for reason, holds in temporary.items():
        if holds:
            return "classic", reason
    for kind, names in (("classic", MAKES_CLASSIC), ("stream", MAKES_STREAM)):
        for name in names:
            if fields[name] is not None:
                value = fields[name]
                shown = str(value) if isinstance(value, timedelta) else repr(value)
                return ("classic" if kind == "classic" else "stream"), f"{name}={shown}"
    return "quorum", ""


def check_arguments(what: str, kind: QueueType, fields: Mapping[str, Any]) -> None:
    """Check the arguments of a queue of this type.

    :param what: description of the queue for error texts.
    :param fields: values of the `Queue`, by field.
    :raises ConfigError: with the argument, its allowed values, and the types that have it.
    """
    if kind not in ALL:
        raise ConfigError(f"{what}: there is no type {kind!r}; there are {', '.join(ALL)}")
    for argument in ARGUMENTS:
        value = fields[argument.field]
        if value is None or value is False:
            continue
        if kind not in argument.types:
            raise ConfigError(
                f"{what}: {argument.field} is no argument of a {kind} queue;"
                f" {' and '.join(argument.types)} queues take it"
            )
        _check_value(what, argument, value)
    if kind != "classic":
        for flag, wrong in (("durable", False), ("exclusive", True), ("auto_delete", True)):
            if fields[flag] is wrong:
                raise ConfigError(f"{what}: a {kind} queue cannot have {flag}={wrong}; a classic one can")
    if kind == "quorum" and fields["overflow"] == "reject-publish-dlx":
        raise ConfigError(
            f"{what}: a quorum queue has no overflow='reject-publish-dlx': take 'reject-publish'"
        )
    if fields["dead_letter_routing_key"] is not None and fields["dead_letter_exchange"] is None:
        raise ConfigError(f"{what}: dead_letter_routing_key without a dead_letter_exchange")
    if fields["dead_letter_strategy"] == "at-least-once" and fields["overflow"] not in (
        None,
        "reject-publish",
    ):
        raise ConfigError(
            f"{what}: at-least-once dead-lettering needs overflow='reject-publish', or the broker falls back to at-most-once"
        )
    least, most = fields["delayed_retry_min"], fields["delayed_retry_max"]
    if least is not None and most is not None and most < least:
        raise ConfigError(f"{what}: delayed_retry_max is below delayed_retry_min")


def check_name(what: str, name: object) -> None:
    """Check the name of an exchange or a queue, or a routing key.

    :param what: description of the value for the error text.
    :raises ConfigError: if it is not a text of at most 255 bytes of UTF-8.
    """
    if not isinstance(name, str):
        raise ConfigError(f"the name of {what} must be a text, not {name!r}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise ConfigError(
            f"the name of {what} is no text that UTF-8 can carry: {name.encode('utf-8', 'replace')!r}"
        ) from None
    if size > NAME_BYTES:
        raise ConfigError(f"the name of {what} is longer than {NAME_BYTES} bytes: {name[:40]}...")


def wire_value(argument: QueueArgument, value: Any) -> Any:
    """Return the value of a `Queue` field as AMQP sends it:
    durations in milliseconds, `max_age` as text such as `60s`.
    """
    if not isinstance(value, timedelta):
        return value
    if argument.field == "max_age":
        return f"{-(-value // timedelta(seconds=1))}s"
    return milliseconds(value)


def _check_value(what: str, argument: QueueArgument, value: Any) -> None:
    field = argument.field
    if type(value) is not argument.form:
        raise ConfigError(f"{what}: {field}={value!r} must be of type {argument.form.__name__}")
    if argument.words and value not in argument.words:
        raise ConfigError(f"{what}: {field}={value!r} is none of {', '.join(argument.words)}")
    if isinstance(value, str):
        check_name(f"{field} of {what}", value)
        return
    number = milliseconds(value) if isinstance(value, timedelta) else value
    if not argument.lowest <= number <= argument.highest:
        unit = " ms" if argument.form is timedelta else ""
        raise ConfigError(
            f"{what}: {field} is {shown_value(number)}{unit}; it may be {argument.lowest} to {argument.highest}{unit}"
        )
