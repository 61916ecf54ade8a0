"""queue.declare with argument fields of any type, and RabbitMQ's refusals of it."""

from __future__ import annotations

import struct

from pamqp import commands

from tests.support.frames import frame as raw_frame
from tests.support.raw_client import RawClient, Refusal

DURABLE, EXCLUSIVE, AUTO_DELETE = 2, 4, 8
Field = tuple[str, bytes]


def integer(value: int) -> bytes:
    return b"I" + struct.pack(">i", value)


def long(value: int) -> bytes:
    return b"l" + struct.pack(">q", value)


def text(value: str) -> bytes:
    return b"S" + struct.pack(">I", len(value.encode())) + value.encode()


QUORUM = ("x-queue-type", text("quorum"))
TTL = "x-message-ttl"


def declare(peer: RawClient, name: str, *fields: Field, flags: int = EXCLUSIVE) -> str | Refusal:
    """Declare a queue with argument fields of any type; return its name, or the refusal."""
    table = b"".join(bytes([len(key)]) + key.encode() + raw for key, raw in fields)
    payload = struct.pack(">HHH", 50, 10, 0) + bytes([len(name)]) + name.encode() + bytes([flags])
    peer.send_bytes(raw_frame(1, 1, payload + struct.pack(">I", len(table)) + table))
    number, found = peer.read_method()
    if isinstance(found, commands.Queue.DeclareOk):
        return found.queue or ""
    if isinstance(found, commands.Connection.Close):
        peer.send(commands.Connection.CloseOk(), 0)
        return Refusal("connection", found.reply_code or 0, found.reply_text, (50, 10))
    assert isinstance(found, commands.Channel.Close), found
    assert (number, found.class_id, found.method_id) == (1, 50, 10)
    peer.send(commands.Channel.CloseOk())
    peer.open()
    return Refusal("channel", found.reply_code or 0, found.reply_text, (50, 10))


def failed(code: int, explanation: str) -> Refusal:
    names = {403: "ACCESS_REFUSED", 404: "NOT_FOUND", 405: "RESOURCE_LOCKED", 406: "PRECONDITION_FAILED"}
    return Refusal("channel", code, f"{names[code]} - {explanation}", (50, 10))


def locked(name: str) -> str:
    return (
        f"cannot obtain exclusive access to locked queue '{name}' in vhost '/'. It could be originally declared on another "
        "connection or the exclusive property value does not match that of the original declaration."
    )
