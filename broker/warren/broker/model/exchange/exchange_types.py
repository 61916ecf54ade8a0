"""Exchange types: their names, their arguments, and construction of an exchange of each type."""

from __future__ import annotations

from typing import Final

from warren.broker.model.argument_checks import InvalidValue, argument_fields, exchange_name
from warren.broker.model.deduplication import (
    ARGUMENTS,
    DeduplicationRule,
    InvalidArgument,
    deduplication_rule,
)
from warren.broker.model.exchange.consistent_hash import consistent_hash
from warren.broker.model.exchange.delayed import delayed_type
from warren.broker.model.exchange.exchange import TYPES, Exchange
from warren.broker.model.exchange.modulus_hash import ModulusHash
from warren.broker.model.exchange.random_exchange import RandomSelector
from warren.broker.model.exchange.recent_history import RecentHistory
from warren.broker.model.rabbitmq_versions import VersionBehaviour
from warren.wire.reply_codes import AmqpError, Reply

DELAYED: Final = b"x-delayed-message"
DEDUPLICATING: Final = b"x-message-deduplication"
"""Exchange type of a third-party plugin: a fanout exchange that drops duplicates.

Exchanges of other types do so with the argument x-message-deduplication.
"""
EXCHANGE_TYPES: Final = frozenset(
    (
        *TYPES,
        b"x-consistent-hash",
        b"x-modulus-hash",
        b"x-random",
        b"x-local-random",
        b"x-recent-history",
        DELAYED,
        DEDUPLICATING,
    )
)

ALTERNATE: Final = "alternate-exchange"
EXCHANGE_EQUIVALENCE_ARGUMENTS: Final = (ALTERNATE, "x-delayed-type", *ARGUMENTS)
"""Arguments that a redeclaration of an exchange has to repeat with the same values."""


def check_type(kind: bytes, raw: bytes, compat: VersionBehaviour) -> None:
    """Check that an exchange type exists, and for a delayed exchange the type in x-delayed-type.

    :param kind: the exchange type.
    :param raw: the encoded arguments of the exchange.
    :param compat: behaviour of the RabbitMQ version that the broker imitates.
    :raises AmqpError: 406, or 503 before RabbitMQ 4.0, for an unknown type; 406 for an x-delayed-type that is missing,
        no string, or `x-delayed-message`; 502 for malformed arguments of a delayed exchange.
    """
    if kind == DELAYED:
        kind = delayed_type(argument_fields(raw))
        if kind == DELAYED:
            raise AmqpError(Reply.PRECONDITION_FAILED, "x-delayed-type cannot be x-delayed-message itself")
    if kind not in EXCHANGE_TYPES:
        code, explanation = compat.unknown_exchange_type
        raise AmqpError(code, explanation.format(kind.decode(errors="replace")))


def check_alternate(raw: bytes, described: str) -> None:
    """Check that the argument alternate-exchange, if it is given, is a text that can name an exchange.

    :param raw: the encoded arguments of the exchange.
    :param described: the exchange as error texts name it, `exchange 'e' in vhost '/'`.
    :raises AmqpError: 406 if it cannot, 502 for malformed arguments.
    """
    try:
        exchange_name(argument_fields(raw).get(ALTERNATE), ALTERNATE, described)
    except InvalidValue as reason:
        raise AmqpError(
            Reply.PRECONDITION_FAILED, f"invalid arg '{ALTERNATE}' for {described}: {reason}"
        ) from None


def make_exchange(
    name: bytes,
    kind: bytes,
    durable: bool,
    auto_delete: bool,
    internal: bool,
    raw: bytes,
) -> Exchange:
    """Make an exchange with the parts that its type needs, such as the hashing of a hash exchange.

    :param kind: the exchange type.
    :param internal: True if only other exchanges, no clients, may publish to it.
    :param raw: the encoded arguments.
    :raises AmqpError: 406 for invalid arguments, 502 for malformed ones.
    """
    exchange = Exchange(name, kind, durable, auto_delete, internal, raw)
    fields = argument_fields(raw)
    if kind == DELAYED:
        exchange.is_delayed = True
        kind = exchange.matching_type = delayed_type(fields)
    if kind == b"x-consistent-hash":
        exchange.selector = consistent_hash(fields)
    elif kind == b"x-modulus-hash":
        exchange.selector = ModulusHash()
    elif kind in (b"x-random", b"x-local-random"):
        exchange.selector = RandomSelector(local=kind == b"x-local-random")
    elif kind == DEDUPLICATING:
        exchange.matching_type = b"fanout"
    elif kind == b"x-recent-history":
        exchange.matching_type = b"fanout"
        exchange.recent_history = RecentHistory(raw)
    return exchange


def exchange_deduplication_rule(exchange: Exchange, described: str) -> DeduplicationRule | None:
    """Return the deduplication settings of an exchange; None if it does not deduplicate.

    :param described: the exchange as error texts name it, `exchange 'e' in vhost '/'`.
    :raises AmqpError: 406 for an invalid argument.
    """
    try:
        return deduplication_rule(argument_fields(exchange.arguments), always=exchange.kind == DEDUPLICATING)
    except InvalidArgument as reason:
        raise AmqpError(
            Reply.PRECONDITION_FAILED, f"invalid arg '{reason.name}' for {described}: {reason}"
        ) from None
