"""`x-consistent-hash`: equal keys go to one destination, and each destination gets the share of its weight.

https://github.com/rabbitmq/rabbitmq-server/tree/main/deps/rabbitmq_consistent_hash_exchange
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

from warren.broker.model.exchange.binding_selector import hash_bytes, precondition_failed, printable
from warren.broker.model.exchange.exchange import Exchange
from warren.broker.model.exchange.headers import comparison_key
from warren.wire.content import header_payload
from warren.wire.properties import decode

if TYPE_CHECKING:
    from warren.broker.model.exchange.binding_selector import Destination
    from warren.broker.model.exchange.exchange import Binding
    from warren.broker.model.message import Message
    from warren.wire.field_tables import Field

MAX_WEIGHT: Final = 10_000
HASH_PROPERTIES: Final = ("correlation_id", "message_id", "timestamp")
"""Allowed values of the exchange argument hash-property."""
MASK_64: Final = 2**64 - 1


class ConsistentHash:
    """Weighted rendezvous hashing of an `x-consistent-hash` exchange. The binding key is the weight of the destination.

    For each message, each destination gets a number from the hashes of the message's key and of its own name; the
    destination with the lowest number gets the message. Adding a destination moves only the keys that it gets; removing
    one moves only the keys that it had. The result is the same after a restart. A number takes less than a microsecond;
    the virtual host caches the result for recent routing keys.

    :param header: hash this header instead of the routing key.
    :param property_name: hash this property instead: correlation_id, message_id or timestamp.
    """

    def __init__(self, header: str = "", property_name: str = "") -> None:
        self._header = header
        self._property = property_name
        self._weights: dict[Destination, list[tuple[bytes, int]]] = {}
        """For each destination its binding keys, with the weight of each. Only the first one counts, as in RabbitMQ."""
        self._candidates: list[tuple[Destination, int, int]] | None = []
        """For each destination the hash of its name, and its weight; None after a change, until the next message."""

    @property
    def inspects_message(self) -> bool:
        return bool(self._header or self._property)

    def add(self, binding: Binding) -> None:
        weight = parse_weight(binding.routing_key)
        self._weights.setdefault(binding.destination, []).append((binding.routing_key, weight))
        self._candidates = None

    def remove(self, binding: Binding) -> None:
        weights = self._weights[binding.destination]
        weights.remove((binding.routing_key, parse_weight(binding.routing_key)))
        if not weights:
            del self._weights[binding.destination]
        self._candidates = None

    def remove_destination(self, destination: Destination) -> None:
        del self._weights[destination]
        self._candidates = None

    def _collect_candidates(self) -> list[tuple[Destination, int, int]]:
        return [
            (
                destination,
                hash_bytes(destination.name + bytes([isinstance(destination, Exchange)])),
                weights[0][1],
            )
            for destination, weights in self._weights.items()
        ]

    def select(self, key: bytes, headers: dict[str, Field], message: Message | None) -> list[Destination]:
        candidates = self._candidates
        if candidates is None:
            candidates = self._candidates = self._collect_candidates()
        if len(candidates) < 2:
            return [destination for destination, _, _ in candidates]
        number = hash_bytes(self._bytes_to_hash(key, headers, message))
        best: list[Destination] = []
        lowest = math.inf
        for destination, seed, weight in candidates:
            # An exponential variate with rate `weight`: each destination has the lowest draw in proportion to its weight.
            mixed = mix_bits(number ^ seed)
            draw = -math.log((mixed + 0.5) / 2.0**64) / weight
            if draw < lowest:
                lowest = draw
                best = [destination]
        return best

    def _bytes_to_hash(self, key: bytes, headers: dict[str, Field], message: Message | None) -> bytes:
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
    """Make the part of an `x-consistent-hash` exchange that selects the destination of each message.

    :param fields: the arguments of the exchange, of which hash-header and hash-property count.
    :raises AmqpError: 406 with RabbitMQ's text if one of them is invalid, or both are given.
    """
    names = []
    for argument in ("hash-header", "hash-property"):
        field = fields.get(argument)
        if field is not None and field.kind != "S":
            raise precondition_failed(f"invalid type '{field.type_name}' for arg '{argument}'")
        names.append("" if field is None else str(field.value))
    header, name = names
    if header and name:
        raise precondition_failed("hash-header and hash-property are mutually exclusive")
    if name and name not in HASH_PROPERTIES:
        raise precondition_failed(f"Unsupported property: {name}")
    return ConsistentHash(header, name)


def parse_weight(key: bytes) -> int:
    """Return the weight in a binding key of an `x-consistent-hash` exchange.

    :raises AmqpError: 406 if it is no integer from 1 to 10,000.
    """
    if re.fullmatch(rb"[+-]?[0-9]{1,30}", key) is None:
        shown = f'<<"{printable(key)}">>' if key else "<<>>"
        raise precondition_failed(f"The binding key must be an integer: {shown}")
    weight = int(key)
    if weight < 1:
        raise precondition_failed("The binding key must be greater than 0")
    if weight > MAX_WEIGHT:
        raise precondition_failed(f"The binding key must not exceed {MAX_WEIGHT}")
    return weight


def mix_bits(number: int) -> int:
    """Return a 64-bit number in which each bit depends on every bit of `number` (the finalizer of splitmix64)."""
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & MASK_64
    number = (number ^ number >> 27) * 0x94D049BB133111EB & MASK_64
    return number ^ number >> 31
