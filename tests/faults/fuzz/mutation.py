"""A valid conversation of a client that uses most methods, and random mutations of its frames."""

from __future__ import annotations

import random
import struct

from pamqp import base, commands

from tests.support.raw_client import content, encoded, made

PROPERTIES = commands.Basic.Properties(
    content_type="text/plain",
    headers={"n": 1, "list": [1, "two", {"three": None}], "CC": ["other"]},
    delivery_mode=2,
    priority=3,
    reply_to="replies",
    expiration="60000",
    message_id="m1",
    user_id="guest",
)


def valid_conversation() -> list[bytes]:
    """Return the frames of a client on channel 1, all of them valid."""
    publish = encoded(made(commands.Basic.Publish, exchange="x", routing_key="a.b", mandatory=True))
    arguments = {"x-max-length": 5, "x-message-ttl": 60000, "x-dead-letter-exchange": "amq.fanout"}
    methods: list[base.Frame] = [
        made(commands.Exchange.Declare, exchange="x", exchange_type="topic", auto_delete=True),
        made(commands.Queue.Declare, queue="", exclusive=True, arguments=arguments),
        made(commands.Queue.Bind, exchange="x", routing_key="a.#", arguments={"k": True}),
        made(commands.Exchange.Bind, destination="x", source="amq.topic", routing_key="#"),
        made(commands.Confirm.Select),
        made(commands.Basic.Qos, prefetch_count=2),
        made(commands.Basic.Consume, consumer_tag="c"),
        made(commands.Basic.Ack, delivery_tag=1),
        made(commands.Basic.Get),
        made(commands.Basic.Nack, delivery_tag=2, multiple=False, requeue=True),
        made(commands.Basic.Recover, requeue=True),
        made(commands.Basic.Cancel, consumer_tag="c"),
        made(commands.Queue.Unbind, exchange="x", routing_key="a.#", arguments={"k": True}),
        made(commands.Queue.Purge),
        made(commands.Queue.Delete, if_unused=True),
        made(commands.Exchange.Delete, exchange="x"),
    ]
    frames = [encoded(method) for method in methods]
    body = content(b"hello", PROPERTIES)
    head = 8 + struct.unpack_from(">I", body, 3)[0]
    for place in (9, 7, 7, 5):
        frames[place:place] = [publish, body[:head], body[head:]]
    return frames


def with_payload(frame: bytes, payload: bytes) -> bytes:
    """Return the frame with another payload."""
    return frame[:3] + struct.pack(">I", len(payload)) + payload + b"\xce"


def mutate(chance: random.Random, frames: list[bytes]) -> list[bytes]:
    """Return the conversation with one to four mutations, each of which keeps complete frames."""
    frames = list(frames)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(frames))
        frame = frames[at]
        payload = bytearray(frame[7:-1])
        match chance.randrange(9):
            case 0 | 1 | 2 if payload:
                payload[chance.randrange(len(payload))] = chance.choice(
                    (0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256))
                )
                frames[at] = with_payload(frame, bytes(payload))
            case 3:
                frames[at] = with_payload(frame, bytes(payload[: chance.randrange(len(payload) + 1)]))
            case 4:
                frames[at] = with_payload(frame, bytes(payload) + chance.randbytes(chance.randrange(9)))
            case 5:
                del frames[at]
            case 6:
                frames.insert(chance.randrange(len(frames) + 1), frame)
            case 7:
                frames[at] = frame[:1] + struct.pack(">H", chance.choice((0, 1, 2, 65535))) + frame[3:]
            case 8:
                frames[at] = bytes([chance.choice((1, 2, 3, 4, 8))]) + frame[1:]
    return frames
