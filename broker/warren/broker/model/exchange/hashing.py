"""Exchange types that lead each message to one of their bindings, by a hash or by chance.

https://github.com/rabbitmq/rabbitmq-server/tree/main/deps/rabbitmq_consistent_hash_exchange and its neighbours.
"""

from __future__ import annotations

import math
import random
import re
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, Union

from warren.broker.model.exchange.exchange import Exchange
from warren.broker.model.exchange.headers import comparison_key
from warren.wire.content import header_payload
from warren.wire.properties import decode
from warren.wire.reply_codes import AmqpError, Reply

if TYPE_CHECKING:
    from warren.broker.model.exchange.exchange import Binding
    from warren.broker.model.message import Message
    from warren.broker.model.queue.queue import Queue
    from warren.wire.field_tables import Field

    Destination: TypeAlias = Union[Queue, Exchange]  # noqa: UP007

MAX_WEIGHT: Final = 10_000
PROPERTIES: Final = ("correlation_id", "message_id", "timestamp")
MASK: Final = 2**64 - 1


class BindingSelector(Protocol):
    """How an exchange chooses."""

    @property
    def inspects_message(self) -> bool:
        """The key alone does not decide: the next message with the same key may go elsewhere."""
        ...

    def add(self, binding: Binding) -> None:
        """A binding more.

        :raises AmqpError: 406 if it cannot be one.
        """
        ...

    def remove(self, binding: Binding) -> None: ...

    def select(self, key: bytes, headers: dict[str, Field], message: Message | None) -> list[Destination]:
        """The destination of a message, alone in a list; none if there is no binding."""
        ...


class RandomSelector:
    """`x-random`: any binding, all with the same chance. As `x-local-random` it leads to classic queues without a key."""

    inspects_message = True

    def __init__(self, local: bool = False) -> None:
        self._local = local
        self._bindings: list[Binding] = []

    def add(self, binding: Binding) -> None:
        if self._local:
            if binding.routing_key:
                raise invalid(f"Non empty binding '{text(binding.routing_key)}' key not permitted")
            kind = binding.queue_type()
            if kind != "classic":
                reason = f"Queue type rabbit_{kind}_queue not valid for this exchange type"
                raise invalid(reason if kind else "Destination not found")
        self._bindings.append(binding)

    def remove(self, binding: Binding) -> None:
        self._bindings.remove(binding)

    def select(self, key: bytes, headers: dict[str, Field], message: Message | None) -> list[Destination]:
        return [random.choice(self._bindings).destination] if self._bindings else []


class ModulusHash:
    """`x-modulus-hash`: the hash of the routing key modulo the number of destinations, in the order of their names."""

    inspects_message = False

    def __init__(self) -> None:
        self._counts: dict[Destination, int] = {}
        self._order: list[Destination] = []

    def add(self, binding: Binding) -> None:
        self._counts[binding.destination] = self._counts.get(binding.destination, 0) + 1
        self._sort()

    def remove(self, binding: Binding) -> None:
        left = self._counts.pop(binding.destination) - 1
        if left:
            self._counts[binding.destination] = left
        self._sort()

    def _sort(self) -> None:
        self._order = sorted(self._counts, key=lambda destination: destination.name)

    def select(self, key: bytes, headers: dict[str, Field], message: Message | None) -> list[Destination]:
        return [self._order[hashed(key) % len(self._order)]] if self._order else []


class ConsistentHash:
    """`x-consistent-hash`: equal keys go to one destination, and each gets a share of the keys that is its weight's.

    The binding key is the weight. When a destination comes or goes, only the keys that it gets or had move: each one has a
    draw for each destination, by both their hashes, and the highest wins (weighted rendezvous). What decides is the same
    after a restart. A draw takes less than a microsecond, and the outcome is remembered for the routing keys seen last.

    :param header: hash this header instead of the routing key.
    :param name: hash this property instead: correlation_id, message_id or timestamp.
    """

    def __init__(self, header: str = "", name: str = "") -> None:
        self._header = header
        self._property = name
        self._weights: dict[Destination, list[tuple[bytes, int]]] = {}
        """Where a destination is bound several times, its first binding counts, as in RabbitMQ."""
        self._draws: list[tuple[Destination, int, int]] = []

    @property
    def inspects_message(self) -> bool:
        return bool(self._header or self._property)

    def add(self, binding: Binding) -> None:
        weight = weight_of(binding.routing_key)
        self._weights.setdefault(binding.destination, []).append((binding.routing_key, weight))
        self._draw()

    def remove(self, binding: Binding) -> None:
        weights = self._weights[binding.destination]
        weights.remove((binding.routing_key, weight_of(binding.routing_key)))
        if not weights:
            del self._weights[binding.destination]
        self._draw()

    def _draw(self) -> None:
        self._draws = [
            (
                destination,
                hashed(destination.name + bytes([isinstance(destination, Exchange)])),
                weights[0][1],
            )
            for destination, weights in self._weights.items()
        ]

    def select(self, key: bytes, headers: dict[str, Field], message: Message | None) -> list[Destination]:
        draws = self._draws
        if len(draws) < 2:
            return [destination for destination, _, _ in draws]
        number = hashed(self._hashed_bytes(key, headers, message))
        best: list[Destination] = []
        lowest = math.inf
        for destination, seed, weight in draws:
            # An exponential variate of the rate `weight`: the lowest is a destination's as often as its share says.
            mixed = mix(number ^ seed)
            draw = -math.log((mixed + 0.5) / 2.0**64) / weight
            if draw < lowest:
                lowest = draw
                best = [destination]
        return best

    def _hashed_bytes(self, key: bytes, headers: dict[str, Field], message: Message | None) -> bytes:
        if self._header:
            field = headers.get(self._header)
            return b"" if field is None else repr(comparison_key(field)).encode()
        if self._property:
            if message is None:
                return b""
            value = decode(header_payload(message.content), "x-death").get(self._property)
            return b"" if value is None else str(value).encode()
        return key


def consistent_hash(fields: dict[str, Field]) -> ConsistentHash:
    """From the arguments of its exchange, in RabbitMQ's words.

    :raises AmqpError: 406 if they are none.
    """
    names = []
    for argument in ("hash-header", "hash-property"):
        field = fields.get(argument)
        if field is not None and field.kind != "S":
            raise invalid(f"invalid type '{field.type_name}' for arg '{argument}'")
        names.append("" if field is None else str(field.value))
    header, name = names
    if header and name:
        raise invalid("hash-header and hash-property are mutually exclusive")
    if name and name not in PROPERTIES:
        raise invalid(f"Unsupported property: {name}")
    return ConsistentHash(header, name)


def weight_of(key: bytes) -> int:
    """The weight that a binding key says.

    :raises AmqpError: 406 if it is no number from 1 to 10,000.
    """
    if re.fullmatch(rb"[+-]?[0-9]{1,30}", key) is None:
        shown = f'<<"{text(key)}">>' if key else "<<>>"
        raise invalid(f"The binding key must be an integer: {shown}")
    weight = int(key)
    if weight < 1:
        raise invalid("The binding key must be greater than 0")
    if weight > MAX_WEIGHT:
        raise invalid(f"The binding key must not exceed {MAX_WEIGHT}")
    return weight


def hashed(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest())


def mix(number: int) -> int:
    """A number of 64 bits whose every bit depends on all of those given (the end of splitmix64)."""
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & MASK
    number = (number ^ number >> 27) * 0x94D049BB133111EB & MASK
    return number ^ number >> 31


def invalid(reason: str) -> AmqpError:
    return AmqpError(Reply.PRECONDITION_FAILED, reason)


def text(data: bytes) -> str:
    return data.decode(errors="replace")
