"""Rewriting of names and times between clients and a shared live broker: a suffix on each name isolates a test, and its
TTLs and delays are divided so that it runs faster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from warren.wire import field_tables, methods, properties
from warren.wire.field_tables import Field, Value
from warren.wire.methods import Argument, Arguments, Method

NAME_BYTES: Final = 255
TIMES: Final = frozenset(
    {"x-message-ttl", "x-expires", "x-delay", "x-delayed-retry-min", "x-delayed-retry-max"}
)
"""Queue arguments and message headers in milliseconds that are divided by `scale` on the way to the broker, because
they are TTLs or delays in the test's time. Timeouts in real time, such as `x-consumer-timeout`, are left as they
are."""

_QUEUE = ("queue",)
_EXCHANGE = ("exchange",)
_BOTH = ("queue", "exchange")
_ENDS = ("destination", "source")
NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "exchange.declare": _EXCHANGE,
    "exchange.delete": _EXCHANGE,
    "exchange.bind": _ENDS,
    "exchange.unbind": _ENDS,
    "queue.declare": _QUEUE,
    "queue.bind": _BOTH,
    "queue.unbind": _BOTH,
    "queue.purge": _QUEUE,
    "queue.delete": _QUEUE,
    "basic.consume": _QUEUE,
    "basic.get": _QUEUE,
    "basic.publish": _EXCHANGE,
    "queue.declare-ok": _QUEUE,
    "basic.deliver": ("exchange", "routing_key"),
    "basic.get-ok": ("exchange", "routing_key"),
    "basic.return": ("exchange", "routing_key"),
}
"""Fields of each AMQP method that contain, or may contain, the name of a queue or exchange, by the method's name."""
TEXTS: Final = frozenset({"channel.close", "connection.close"})
"""AMQP methods whose reply text may contain names of queues or exchanges."""


class NameRewriter:
    """Rewriter of queue and exchange names, TTLs and delays in the frames between clients and a broker.

    :param suffix: appended to every name except predeclared ones (`amq.`) and the default exchange's.
    :param scale: how many times faster than real time the test's time passes; TTLs and delays are divided by it.
    """

    def __init__(self, suffix: str, scale: float) -> None:
        self._suffix = suffix.encode()
        self._scale = scale

    def to_broker(self, name: bytes) -> bytes:
        """Return the name that the broker gets for a name that the test uses.

        :raises ValueError: if the name would be longer than 255 bytes.
        """
        if not name or name.startswith(b"amq."):
            return name
        if len(name) + len(self._suffix) > NAME_BYTES:
            raise ValueError(f"the name {name.decode(errors='replace')} is too long to be tested: shorten it")
        return name + self._suffix

    def to_client(self, name: bytes) -> bytes:
        """Return the name that the test uses for a name from the broker."""
        return name.removesuffix(self._suffix)

    def rewrite_request(self, payload: bytes) -> tuple[bytes, Method | None, Arguments]:
        """Return the payload of a method frame from a client with the names that the broker gets, and with TTLs divided
        by `scale`.

        :return: the new payload; the method; and its fields after the change, by which the proxy records what the test
            declares. The method is None, and the payload unchanged, if the method contains no names.
        """
        method = _method(payload)
        if method is None:
            return payload, None, Arguments()
        fields = methods.decode(method, payload)
        to_default = method.name == "basic.publish" and not fields["exchange"]
        for name in NAMES.get(method.name, ()):
            fields[name] = self.to_broker(fields.data(name))
        if to_default:  # The routing key is a queue's name (AMQP 0-9-1 section 3.1.3.1).
            fields["routing_key"] = self.to_broker(fields.data("routing_key"))
        if fields.get("arguments"):
            fields["arguments"] = self._arguments(fields.data("arguments"))
        return _encoded(method, fields), method, fields

    def rewrite_response(self, payload: bytes) -> bytes:
        """Return the payload of a method frame from the broker with the names that the test uses."""
        method = _method(payload)
        if method is None or self._suffix not in payload:
            return payload
        fields = methods.decode(method, payload)
        for name in NAMES.get(method.name, ()):
            fields[name] = self.to_client(fields.data(name))
        if method.name in TEXTS:
            fields["reply_text"] = fields.data("reply_text").replace(self._suffix, b"")
        return _encoded(method, fields)

    def rewrite_request_header(self, payload: bytes) -> bytes:
        """Return the payload of a content header frame from a client with its times divided by `scale`.

        The expiration of an RPC request (a message with `reply_to`) stays, because it is the caller's timeout in real
        time.
        """
        held = properties.decode(payload)
        expiration, headers = held.data("expiration"), held.headers
        times = TIMES & headers.keys()
        if (expiration is None or "reply_to" in held) and not times:
            return payload
        if expiration is not None and "reply_to" not in held:
            held["expiration"] = str(self._divided(int(expiration))).encode()
        if times:
            held["headers"] = {**headers, **{name: self._time(headers[name]) for name in times}}
        return properties.encode(held, int.from_bytes(payload[4:12]))

    def rewrite_response_header(self, payload: bytes) -> bytes:
        """Return the payload of a content header frame from the broker with the names that the test uses in headers
        such as `x-death`."""
        if self._suffix not in payload:
            return payload
        held = properties.decode(payload)
        suffix = self._suffix.decode()
        held["headers"] = {
            name: field_tables.field_of(_without(field.value, suffix)) if self._suffix in field.raw else field
            for name, field in held.headers.items()
        }
        return properties.encode(held, int.from_bytes(payload[4:12]))

    def _arguments(self, table: bytes) -> bytes:
        fields = field_tables.decode_fields(table)
        for name in ("x-dead-letter-exchange", "alternate-exchange"):
            if name in fields:
                fields[name] = self._name(fields[name])
        to, key = fields.get("x-dead-letter-exchange"), fields.get("x-dead-letter-routing-key")
        if to is not None and to.value == "" and key is not None:
            fields["x-dead-letter-routing-key"] = self._name(key)
        for name in TIMES & fields.keys():
            fields[name] = self._time(fields[name])
        return field_tables.join(fields)

    def _name(self, field: Field) -> Field:
        if not isinstance(field.value, str):
            return field
        return field_tables.field_of(self.to_broker(field.value.encode()).decode())

    def _time(self, field: Field) -> Field:
        if not isinstance(field.value, int):
            return field
        return field_tables.field_of(self._divided(field.value))

    def _divided(self, milliseconds: int) -> int:
        """Divide a TTL or delay in milliseconds by `scale`, the factor by which the test's time is faster than real
        time. Round up, so that nothing expires too early."""
        return -int(-milliseconds // self._scale)


def _method(payload: bytes) -> Method | None:
    """Return the AMQP method of the payload if its fields or its reply text can contain names, else None."""
    method = methods.BY_ID.get(int.from_bytes(payload[:4]))
    return method if method is not None and (method.name in NAMES or method.name in TEXTS) else None


def _encoded(method: Method, fields: Mapping[str, Argument]) -> bytes:
    return methods.encode(method.name, *(fields[name] for _, name in method.fields))


def _without(value: Value, suffix: str) -> Value:
    if isinstance(value, str):
        return value.removesuffix(suffix)
    if isinstance(value, list):
        return [_without(item, suffix) for item in value]
    if isinstance(value, dict):
        return {name: _without(item, suffix) for name, item in value.items()}
    return value
