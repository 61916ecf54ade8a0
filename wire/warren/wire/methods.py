"""Codec of AMQP 0-9-1 methods, driven by one table of their fields.

Strings are bytes, because RabbitMQ does not require UTF-8. Tables stay encoded, so that the types of their fields survive.
Methods on the hot path (publish, deliver, ack) are also encoded and decoded by hand elsewhere.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple, TypeAlias

from warren.wire.field_tables import MAX_LOGIN_VALUES, MAX_VALUES, TableError, check_peer_table
from warren.wire.reply_codes import TEXT_LIMIT, AmqpError, Reply, erlang_octets

Argument: TypeAlias = "int | bytes | bool"

LONGEST_SHORT_STRING: Final = 255
"""Most bytes of a short string, such as a name or a routing key: its length is transferred in one byte."""

_SPEC = """
10.10 connection.start      octet:version_major octet:version_minor table:server_properties longstr:mechanisms longstr:locales
10.11 connection.start-ok   table:client_properties short:mechanism longstr:response short:locale
10.20 connection.secure     longstr:challenge
10.21 connection.secure-ok  longstr:response
10.30 connection.tune       u16:channel_max u32:frame_max u16:heartbeat
10.31 connection.tune-ok    u16:channel_max u32:frame_max u16:heartbeat
10.40 connection.open       short:virtual_host short:reserved_1 bit:reserved_2
10.41 connection.open-ok    short:reserved_1
10.50 connection.close      u16:reply_code short:reply_text u16:class_id u16:method_id
10.51 connection.close-ok
10.60 connection.blocked    short:reason
10.61 connection.unblocked
10.70 connection.update-secret longstr:new_secret short:reason
10.71 connection.update-secret-ok
20.10 channel.open          short:reserved_1
20.11 channel.open-ok       longstr:reserved_1
20.20 channel.flow          bit:active
20.21 channel.flow-ok       bit:active
20.40 channel.close         u16:reply_code short:reply_text u16:class_id u16:method_id
20.41 channel.close-ok
30.10 access.request        short:realm bit:exclusive bit:passive bit:active bit:write bit:read
30.11 access.request-ok     u16:ticket
40.10 exchange.declare      u16:ticket short:exchange short:type bit:passive bit:durable bit:auto_delete bit:internal bit:nowait table:arguments
40.11 exchange.declare-ok
40.20 exchange.delete       u16:ticket short:exchange bit:if_unused bit:nowait
40.21 exchange.delete-ok
40.30 exchange.bind         u16:ticket short:destination short:source short:routing_key bit:nowait table:arguments
40.31 exchange.bind-ok
40.40 exchange.unbind       u16:ticket short:destination short:source short:routing_key bit:nowait table:arguments
40.51 exchange.unbind-ok
50.10 queue.declare         u16:ticket short:queue bit:passive bit:durable bit:exclusive bit:auto_delete bit:nowait table:arguments
50.11 queue.declare-ok      short:queue u32:message_count u32:consumer_count
50.20 queue.bind            u16:ticket short:queue short:exchange short:routing_key bit:nowait table:arguments
50.21 queue.bind-ok
50.30 queue.purge           u16:ticket short:queue bit:nowait
50.31 queue.purge-ok        u32:message_count
50.40 queue.delete          u16:ticket short:queue bit:if_unused bit:if_empty bit:nowait
50.41 queue.delete-ok       u32:message_count
50.50 queue.unbind          u16:ticket short:queue short:exchange short:routing_key table:arguments
50.51 queue.unbind-ok
60.10 basic.qos             u32:prefetch_size u16:prefetch_count bit:global
60.11 basic.qos-ok
60.20 basic.consume         u16:ticket short:queue short:consumer_tag bit:no_local bit:no_ack bit:exclusive bit:nowait table:arguments
60.21 basic.consume-ok      short:consumer_tag
60.30 basic.cancel          short:consumer_tag bit:nowait
60.31 basic.cancel-ok       short:consumer_tag
60.40 basic.publish         u16:ticket short:exchange short:routing_key bit:mandatory bit:immediate
60.50 basic.return          u16:reply_code short:reply_text short:exchange short:routing_key
60.60 basic.deliver         short:consumer_tag u64:delivery_tag bit:redelivered short:exchange short:routing_key
60.70 basic.get             u16:ticket short:queue bit:no_ack
60.71 basic.get-ok          u64:delivery_tag bit:redelivered short:exchange short:routing_key u32:message_count
60.72 basic.get-empty       short:reserved_1
60.80 basic.ack             u64:delivery_tag bit:multiple
60.90 basic.reject          u64:delivery_tag bit:requeue
60.100 basic.recover-async  bit:requeue
60.110 basic.recover        bit:requeue
60.111 basic.recover-ok
60.120 basic.nack           u64:delivery_tag bit:multiple bit:requeue
85.10 confirm.select        bit:nowait
85.11 confirm.select-ok
90.10 tx.select
90.11 tx.select-ok
90.20 tx.commit
90.21 tx.commit-ok
90.30 tx.rollback
90.31 tx.rollback-ok
"""


BASIC: Final = 60
"""Class id of the AMQP class basic."""
PUBLISH: Final = 40
DELIVER: Final = 60
ACK: Final = 80
REJECT: Final = 90
RECOVER: Final = 110
NACK: Final = 120


class Method(NamedTuple):
    """Description of an AMQP method: its name, its ids, and its arguments as pairs of type and name.

    A pair is, for example, (`short`, `queue`).
    """

    name: str
    class_id: int
    method_id: int
    fields: tuple[tuple[str, str], ...]


def _parse() -> dict[int, Method]:
    methods = {}
    for line in _SPEC.strip().splitlines():
        ids, name, *fields = line.split()
        class_id, method_id = map(int, ids.split("."))
        pairs = tuple((kind, field) for kind, field in (word.split(":") for word in fields))
        methods[class_id << 16 | method_id] = Method(name, class_id, method_id, pairs)
    return methods


BY_ID = _parse()
"""Every AMQP method, by `class id << 16 | method id`."""
BY_NAME = {method.name: method for method in BY_ID.values()}

_NUMBERS = {
    "octet": struct.Struct(">B"),
    "u16": struct.Struct(">H"),
    "u32": struct.Struct(">I"),
    "u64": struct.Struct(">Q"),
}
_IDS = struct.Struct(">HH")
_START_OK = (10, 11)
_FRAME = struct.Struct(">BHI")


class Arguments(dict[str, Argument]):
    """Decoded arguments of an AMQP method by name, with one accessor for each type."""

    def flag(self, name: str) -> bool:
        return self[name] is True

    def number(self, name: str) -> int:
        value = self[name]
        assert isinstance(value, int)
        return value

    def data(self, name: str) -> bytes:
        value = self[name]
        assert isinstance(value, bytes)
        return value


def decode(method: Method, payload: bytes) -> Arguments:
    """Decode the payload of a method frame.

    :raises AmqpError: 501 FRAME_ERROR if the payload is shorter or longer than its fields, 502 SYNTAX_ERROR for a table with
        NaN, an infinite number, or too many values
    """
    arguments = Arguments()
    position, bit = 4, 0
    try:
        for kind, name in method.fields:
            if kind == "bit":
                arguments[name] = payload[position] >> bit & 1 == 1
                bit += 1
                continue
            if bit:
                position, bit = position + 1, 0
            if kind in _NUMBERS:
                number = _NUMBERS[kind]
                (arguments[name],) = number.unpack_from(payload, position)
                position += number.size
                continue
            if kind == "short":
                length, start = payload[position], position + 1
            else:
                (length,), start = _NUMBERS["u32"].unpack_from(payload, position), position + 4
            position = start + length
            if position > len(payload):
                raise IndexError
            arguments[name] = data = payload[start:position]
            if kind == "table":
                before_login = (method.class_id, method.method_id) == _START_OK
                check_peer_table(data, MAX_LOGIN_VALUES if before_login else MAX_VALUES)
    except TableError as error:
        raise AmqpError(Reply.SYNTAX_ERROR, str(error), method.class_id, method.method_id) from None
    except (IndexError, struct.error):
        raise decode_error(payload) from None
    if position + (bit > 0) != len(payload):
        raise decode_error(payload)
    return arguments


def decode_error(payload: bytes) -> AmqpError:
    """Return RabbitMQ's error for a method frame whose payload is shorter or longer than its arguments."""
    class_id, method_id = _IDS.unpack_from(payload)
    return AmqpError(
        Reply.FRAME_ERROR, f"cannot decode {erlang_octets(payload[4 : 4 + TEXT_LIMIT])}", class_id, method_id
    )


def encode(name: str, *values: Argument) -> bytes:
    """Encode the payload of a method frame.

    :param name: name in the specification, such as "queue.declare"
    :param values: one value for each field, in the order of the specification
    :raises ValueError: if a short string is longer than 255 bytes
    """
    method = BY_NAME[name]
    parts = [_IDS.pack(method.class_id, method.method_id)]
    bits, count = 0, 0
    for (kind, field), value in zip(method.fields, values, strict=True):
        if kind == "bit":
            bits |= bool(value) << count
            count += 1
            continue
        if count:
            parts.append(bytes((bits,)))
            bits, count = 0, 0
        if kind in _NUMBERS:
            assert isinstance(value, int)
            parts.append(_NUMBERS[kind].pack(value))
        else:
            assert isinstance(value, bytes)
            if kind == "short":
                if len(value) > LONGEST_SHORT_STRING:
                    raise ValueError(f"{name}: {field} is longer than {LONGEST_SHORT_STRING} bytes")
                parts.append(bytes((len(value),)))
            else:
                parts.append(_NUMBERS["u32"].pack(len(value)))
            parts.append(value)
    if count:
        parts.append(bytes((bits,)))
    return b"".join(parts)


def frame(channel: int, name: str, *values: Argument) -> bytes:
    """Encode a method as a complete frame of `channel`.

    :param name: name in the specification, such as "queue.declare"
    :param values: one value for each field, in the order of the specification
    :raises ValueError: if a short string is longer than 255 bytes
    """
    payload = encode(name, *values)
    return _FRAME.pack(1, channel, len(payload)) + payload + b"\xce"
