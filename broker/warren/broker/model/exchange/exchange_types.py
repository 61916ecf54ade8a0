"""The types of exchanges: what each one's arguments may be, and what it needs to route."""

from __future__ import annotations

from typing import Final

from warren.broker.model.argument_checks import argument_fields
from warren.broker.model.deduplication import ARGUMENTS, Deduplication, InvalidArgument, deduplication
from warren.broker.model.exchange.delayed import delayed_type
from warren.broker.model.exchange.exchange import TYPES, Exchange
from warren.broker.model.exchange.hashing import ModulusHash, Random, consistent_hash
from warren.broker.model.exchange.recent_history import History
from warren.broker.model.rabbitmq_versions import Compat
from warren.wire.reply_codes import AmqpError, Reply

DELAYED: Final = b"x-delayed-message"
UNIQUE: Final = b"x-message-deduplication"
"""A fanout exchange that deduplicates; every other does if an argument says so."""
KINDS: Final = frozenset(
    (
        *TYPES,
        b"x-consistent-hash",
        b"x-modulus-hash",
        b"x-random",
        b"x-local-random",
        b"x-recent-history",
        DELAYED,
        UNIQUE,
    )
)

COMPARED: Final = ("alternate-exchange", "x-delayed-type", *ARGUMENTS)
"""The arguments that a redeclaration has to repeat."""


def assert_type(kind: bytes, raw: bytes, compat: Compat) -> None:
    """
    :param raw: the exchange's arguments; one that delays names the type that it routes as.
    :raises AmqpError: 406, or before RabbitMQ 4.0 503, if there is no such type.
    """
    if kind == DELAYED:
        kind = delayed_type(argument_fields(raw))
        if kind == DELAYED:
            raise AmqpError(Reply.PRECONDITION_FAILED, "x-delayed-type cannot be x-delayed-message itself")
    if kind not in KINDS:
        code, explanation = compat.unknown_exchange_type
        raise AmqpError(code, explanation.format(kind.decode(errors="replace")))


def make_exchange(
    name: bytes,
    kind: bytes,
    durable: bool,
    auto_delete: bool,
    internal: bool,
    raw: bytes,
    described: str,
) -> Exchange:
    """An exchange with what its type needs.

    :param described: as error texts name it.
    :raises AmqpError: 406 for arguments that its type cannot have.
    """
    exchange = Exchange(name, kind, durable, auto_delete, internal, raw)
    fields = argument_fields(raw)
    alternate = fields.get("alternate-exchange")
    if alternate is not None and alternate.kind != "S":
        raise AmqpError(
            Reply.PRECONDITION_FAILED,
            f"invalid type '{alternate.type_name}' for arg 'alternate-exchange' in {described}",
        )
    if kind == DELAYED:
        exchange.delays = True
        kind = exchange.matching = delayed_type(fields)
    if kind == b"x-consistent-hash":
        exchange.choice = consistent_hash(fields)
    elif kind == b"x-modulus-hash":
        exchange.choice = ModulusHash()
    elif kind in (b"x-random", b"x-local-random"):
        exchange.choice = Random(local=kind == b"x-local-random")
    elif kind == UNIQUE:
        exchange.matching = b"fanout"
    elif kind == b"x-recent-history":
        exchange.matching = b"fanout"
        exchange.history = History(raw)
    return exchange


def rule_of(exchange: Exchange, described: str) -> Deduplication | None:
    """What makes a message a duplicate for an exchange; None if nothing does.

    :raises AmqpError: 406 for an argument that says nothing.
    """
    try:
        return deduplication(argument_fields(exchange.arguments), always=exchange.kind == UNIQUE)
    except InvalidArgument as reason:
        raise AmqpError(
            Reply.PRECONDITION_FAILED, f"invalid arg '{reason.name}' for {described}: {reason}"
        ) from None
