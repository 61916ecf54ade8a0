"""Faults of clients with the allowed answers of the broker: one function for each kind of fault.

An answer is named by what the broker sends last: `501` is connection.close with that code, `channel 406` channel.close, `ok`
connection.close-ok, and `gone` a socket that is closed without a reply.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass

from pamqp import base, commands

from tests.faults.fuzz.mutation import mutate, valid_conversation
from tests.faults.fuzz.odd_names import names_in_arguments
from tests.support.frames import BODY, HEADER, HEARTBEAT, METHOD, frame, long, method, short
from tests.support.raw_client import PROTOCOL_HEADER, content, encoded, made

FRAME_MAX = 131072
NOTHING = b""
CONVERSATION = valid_conversation()
DECLARE = encoded(made(commands.Queue.Declare, queue="", exclusive=True))
PUBLISH = encoded(made(commands.Basic.Publish, exchange="", routing_key="nobody"))
CLOSE = encoded(commands.Connection.Close(200, "", 0, 0), 0)
TUNE_OK = encoded(commands.Connection.TuneOk(2047, FRAME_MAX, 0), 0)
OPEN = encoded(commands.Connection.Open("/"), 0)
CHANNEL = encoded(commands.Channel.Open(), 1)


def start_ok(
    login: bytes = b"\0guest\0guest", mechanism: str = "PLAIN", properties: bytes | None = None
) -> bytes:
    """Encode connection.start-ok.

    :param properties: encoded client properties; by default with the capability that makes the broker reply to a wrong login
    """
    capable = short("authentication_failure_close") + b"t\1"
    table = short("capabilities") + b"F" + long(capable) if properties is None else properties
    return method(0, (10, 11), long(table) + short(mechanism) + long(login) + short("en_US"))


START_OK = start_ok()
HANDSHAKE = PROTOCOL_HEADER + START_OK + TUNE_OK + OPEN + CHANNEL


@dataclass(frozen=True)
class Case:
    """All bytes that a client sends on a connection."""

    kind: str
    data: bytes
    answers: frozenset[str]
    """Allowed answers."""
    halts: bool = False
    """True if the client shuts down its side after the bytes, maybe within a frame."""


CaseMaker = Callable[[random.Random], tuple[bytes, str]]
CHANNEL_CODES = "channel 403|channel 404|channel 405|channel 406"
ANY_ANSWER = f"ok|gone|501|502|503|504|505|530|540|{CHANNEL_CODES}"


# -- before a connection is open


def wrong_greeting(chance: random.Random) -> tuple[bytes, str]:
    header = bytearray(PROTOCOL_HEADER)
    header[chance.randrange(8)] ^= 1 << chance.randrange(8)
    return bytes(header), "gone"


def noise(chance: random.Random) -> tuple[bytes, str]:
    return bytes([chance.randrange(65)]) + chance.randbytes(chance.randrange(7, 200)), "gone"


def noise_after_greeting(chance: random.Random) -> tuple[bytes, str]:
    return PROTOCOL_HEADER + frame(
        chance.choice((1, 2, 3, 8, 9)), 0, chance.randbytes(chance.randrange(100))
    ), "gone"


def first_frame_too_large(chance: random.Random) -> tuple[bytes, str]:
    return PROTOCOL_HEADER + struct.pack(">BHI", METHOD, 0, chance.randrange(8193, 2**32)) + bytes(
        100
    ), "gone"


def wrong_handshake_order(chance: random.Random) -> tuple[bytes, str]:
    """Return steps of the handshake in a wrong order."""
    steps = [START_OK, TUNE_OK, OPEN, CHANNEL, CLOSE]
    first = chance.choice([TUNE_OK, OPEN, CHANNEL, DECLARE])
    return PROTOCOL_HEADER + first + b"".join(chance.sample(steps, 2)), "gone"


def wrong_step_after_start(chance: random.Random) -> tuple[bytes, str]:
    wrong = chance.choice([START_OK, OPEN])
    return PROTOCOL_HEADER + START_OK + wrong, "504"


def channel_too_early(chance: random.Random) -> tuple[bytes, str]:
    return PROTOCOL_HEADER + START_OK + chance.choice([TUNE_OK, NOTHING]) + chance.choice(
        [CHANNEL, DECLARE]
    ), "505"


def wrong_password(chance: random.Random) -> tuple[bytes, str]:
    login = (
        b"\0" + chance.choice([b"guest", b"nobody", b"", chance.randbytes(20)]) + b"\0" + chance.randbytes(8)
    )
    return PROTOCOL_HEADER + start_ok(login), "403"


def strange_login(chance: random.Random) -> tuple[bytes, str]:
    return PROTOCOL_HEADER + start_ok(chance.randbytes(chance.randrange(40)).replace(b"\0", b"")), "403"


def wrong_mechanism(chance: random.Random) -> tuple[bytes, str]:
    return PROTOCOL_HEADER + start_ok(mechanism=chance.choice(["", "plain", "X" * 255, "CRAM-MD5"])), "gone"


def broken_client_properties(chance: random.Random) -> tuple[bytes, str]:
    return PROTOCOL_HEADER + start_ok(properties=broken_table(chance)), "gone"


def wrong_tuning(chance: random.Random) -> tuple[bytes, str]:
    bounds = chance.choice([(65535, FRAME_MAX), (0, FRAME_MAX), (2047, 1), (2047, 2**32 - 1), (2047, 0)])
    tuned = struct.pack(">HIH", *bounds, chance.randrange(65536))
    return PROTOCOL_HEADER + START_OK + method(0, (10, 31), tuned), "530"


def unknown_virtual_host(chance: random.Random) -> tuple[bytes, str]:
    name = chance.choice(["", "nowhere", "/" * 200, "a" * 255])
    return PROTOCOL_HEADER + START_OK + TUNE_OK + encoded(
        made(commands.Connection.Open, virtual_host=name), 0
    ), "530"


# -- frames


def wrong_end(chance: random.Random) -> tuple[bytes, str]:
    return DECLARE[:-1] + bytes([chance.choice([0, 1, 0xCD, 0xFF])]), "501"


def too_large(chance: random.Random) -> tuple[bytes, str]:
    size = chance.choice([FRAME_MAX + 1, FRAME_MAX * 2, 2**31, 2**32 - 1])
    return struct.pack(">BHI", chance.choice([METHOD, HEADER, BODY]), 1, size) + bytes(20), "501"


def unknown_frame(chance: random.Random) -> tuple[bytes, str]:
    return frame(chance.choice([0, 4, 5, 6, 7, 9, 255]), chance.randrange(3), chance.randbytes(9)), "501"


def heartbeat_with_payload(chance: random.Random) -> tuple[bytes, str]:
    return frame(HEARTBEAT, 0, chance.randbytes(chance.randrange(1, 20))), "501"


def heartbeat_on_a_channel(chance: random.Random) -> tuple[bytes, str]:
    return frame(HEARTBEAT, chance.randrange(1, 65536), b""), "505"


def tiny_method(chance: random.Random) -> tuple[bytes, str]:
    return frame(METHOD, chance.randrange(2), chance.randbytes(chance.randrange(4))), "501"


# -- methods


def unknown_method(chance: random.Random) -> tuple[bytes, str]:
    ids = chance.choice([(60, 200), (0, 0), (65535, 65535), (10, 99), (20, 11), (61, 40), (85, 12)])
    return method(1, ids, chance.randbytes(chance.randrange(20))), "501|503"


def method_of_the_server(chance: random.Random) -> tuple[bytes, str]:
    """Return a method that only a server sends."""
    kinds: list[base.Frame] = [
        commands.Queue.DeclareOk("q", 0, 0),
        commands.Basic.GetEmpty(),
        commands.Basic.ConsumeOk("c"),
        commands.Channel.OpenOk(),
        commands.Confirm.SelectOk(),
    ]
    return encoded(chance.choice(kinds)), "503"


def cut_method(chance: random.Random) -> tuple[bytes, str]:
    payload = DECLARE[7:-1]
    return frame(METHOD, 1, payload[: chance.randrange(4, len(payload))]), "501"


def method_with_more(chance: random.Random) -> tuple[bytes, str]:
    return frame(METHOD, 1, DECLARE[7:-1] + chance.randbytes(chance.randrange(1, 9))), "501"


def broken_table(chance: random.Random) -> bytes:
    """Return a table whose content contradicts its length."""
    name = short(chance.choice(["x-max-length", "k", ""]))
    kinds = [
        name + b"I\0\0",
        name + b"S" + struct.pack(">I", chance.randrange(1, 2**32)),
        name + b"F" + struct.pack(">I", 100) + b"abc",
        name + b"A" + struct.pack(">I", 2) + b"I\0",
        name + bytes([chance.choice(b"zZyYqQ\0\xff")]) + bytes(8),
        bytes([200]) + b"short",
        name,
    ]
    return chance.choice(kinds)


def broken_arguments(chance: random.Random) -> tuple[bytes, str]:
    name = short("")
    return method(1, (50, 10), b"\0\0" + name + b"\4" + long(broken_table(chance))), "502"


def deep_arguments(chance: random.Random) -> tuple[bytes, str]:
    table = short("k") + b"I" + bytes(4)
    for _ in range(chance.choice([10, 100, 1000, 5000])):
        table = short("k") + b"F" + long(table)
    return method(1, (50, 10), b"\0\0" + short("") + b"\4" + long(table)), "ok|502"


def channel_that_is_closed(chance: random.Random) -> tuple[bytes, str]:
    number = chance.choice([2, 3, 100, 2047])
    command: base.Frame = chance.choice(
        [
            made(commands.Basic.Ack, delivery_tag=1),
            made(commands.Queue.Purge, queue="q"),
            commands.Tx.Select(),
        ]
    )
    return encoded(command, number), "504"


def channel_opened_twice(chance: random.Random) -> tuple[bytes, str]:
    return CHANNEL, "504"


def channel_beyond_the_bound(chance: random.Random) -> tuple[bytes, str]:
    return encoded(commands.Channel.Open(), chance.randrange(2048, 65536)), "530|504|ok"


def channel_method_on_zero(chance: random.Random) -> tuple[bytes, str]:
    return DECLARE[:1] + b"\0\0" + DECLARE[3:], "503|504|505"


def connection_method_on_a_channel(chance: random.Random) -> tuple[bytes, str]:
    which = chance.choice([TUNE_OK, OPEN, START_OK])
    return which[:1] + struct.pack(">H", 1) + which[3:], "503|504|505"


def refused(chance: random.Random) -> tuple[bytes, str]:
    """Return a well-formed method that the broker must refuse."""
    tag = chance.choice([1, 7, 2**62, 2**63 - 1])
    kinds: list[tuple[base.Frame, str]] = [
        (made(commands.Basic.Ack, delivery_tag=tag), "channel 406"),
        (made(commands.Basic.Reject, delivery_tag=tag), "channel 406"),
        (made(commands.Queue.Declare, queue="q" + str(tag), passive=True), "channel 404"),
        (made(commands.Queue.Declare, queue="amq.mine"), "channel 403"),
        (made(commands.Queue.Declare, queue="", arguments={"x-expires": 0}), "channel 406"),
        (made(commands.Queue.Bind, queue="none", exchange="none"), "channel 404"),
        (made(commands.Queue.Purge, queue=""), "channel 404"),
        (made(commands.Exchange.Declare, exchange="y", exchange_type="nonsense"), "channel 406"),
        (made(commands.Exchange.Declare, exchange="", exchange_type="direct"), "channel 403"),
        (made(commands.Exchange.Delete, exchange="amq.topic"), "channel 403"),
        (made(commands.Basic.Get, queue="none"), "channel 404"),
        (made(commands.Basic.Consume, queue="none"), "channel 404"),
        (made(commands.Basic.Qos, prefetch_size=1), "540"),
        (made(commands.Basic.Recover, requeue=False), "540"),
        (made(commands.Channel.Flow, active=False), "540"),
        (commands.Tx.Commit(), "channel 406"),
        (commands.Tx.Rollback(), "channel 406"),
    ]
    command, answer = chance.choice(kinds)
    return encoded(command), answer


# -- content


def content_without_publish(chance: random.Random) -> tuple[bytes, str]:
    return chance.choice(
        [content(b"x"), frame(BODY, 1, b"x"), frame(BODY, 7, b"x"), frame(HEADER, 0, b"")]
    ), "505"


def method_instead_of_content(chance: random.Random) -> tuple[bytes, str]:
    between = chance.choice([DECLARE, PUBLISH, encoded(commands.Tx.Select())])
    return PUBLISH + between, "505"


def body_instead_of_header(chance: random.Random) -> tuple[bytes, str]:
    return PUBLISH + frame(BODY, 1, chance.randbytes(9)), "505"


def header_of_another_class(chance: random.Random) -> tuple[bytes, str]:
    head = struct.pack(">HHQH", chance.choice([10, 61, 0, 65535]), 0, 1, 0)
    return PUBLISH + frame(HEADER, 1, head), "505"


def cut_header(chance: random.Random) -> tuple[bytes, str]:
    head = content(NOTHING, commands.Basic.Properties(content_type="text/plain", message_id="m"))[7:-1]
    return PUBLISH + frame(HEADER, 1, head[: chance.randrange(len(head))]), "501|502|505"


def broken_properties(chance: random.Random) -> tuple[bytes, str]:
    head = struct.pack(">HHQH", 60, 0, 0, 0x2000) + long(broken_table(chance))
    return PUBLISH + frame(HEADER, 1, head), "502"


def impossible_flags(chance: random.Random) -> tuple[bytes, str]:
    head = struct.pack(">HHQH", 60, 0, 0, chance.choice([1, 2, 0xFFFF, 0x8000]))
    return PUBLISH + frame(HEADER, 1, head), "ok|501|502|505"


def too_much_body(chance: random.Random) -> tuple[bytes, str]:
    head = struct.pack(">HHQH", 60, 0, chance.randrange(5), 0)
    return PUBLISH + frame(HEADER, 1, head) + frame(BODY, 1, bytes(chance.randrange(5, 50))), "501|505"


def endless_body(chance: random.Random) -> tuple[bytes, str]:
    head = struct.pack(">HHQH", 60, 0, chance.choice([2**63, 2**64 - 1, 2**40, 17 * 2**20]), 0)
    return PUBLISH + frame(HEADER, 1, head), "channel 406|501"


def refused_content(chance: random.Random) -> tuple[bytes, str]:
    wrong: list[tuple[commands.Basic.Properties, str]] = [
        (commands.Basic.Properties(expiration="soon"), "channel 406"),
        (commands.Basic.Properties(expiration="-1"), "channel 406"),
        (commands.Basic.Properties(user_id="somebody"), "channel 406"),
        (commands.Basic.Properties(headers={"CC": "one"}), "channel 406"),
        (commands.Basic.Properties(headers={"BCC": 1}), "channel 406"),
    ]
    properties, answer = chance.choice(wrong)
    return PUBLISH + content(b"x", properties), answer


def publish_to_nowhere(chance: random.Random) -> tuple[bytes, str]:
    name = chance.choice(["none", "q" * 255])
    return encoded(made(commands.Basic.Publish, exchange=name)) + content(b"x"), "channel 404"


# -- everything at once


def corrupted_stream(chance: random.Random) -> tuple[bytes, str]:
    return b"".join(mutate(chance, CONVERSATION)), ANY_ANSWER


HANDSHAKE_FAULTS: dict[str, CaseMaker] = {
    maker.__name__: maker
    for maker in (
        wrong_greeting,
        noise,
        noise_after_greeting,
        first_frame_too_large,
        wrong_handshake_order,
        wrong_step_after_start,
        channel_too_early,
        wrong_password,
        strange_login,
        wrong_mechanism,
        broken_client_properties,
        wrong_tuning,
        unknown_virtual_host,
    )
}
"""Faults of the handshake, which contain all bytes of the connection."""

CHANNEL_FAULTS: dict[str, CaseMaker] = {
    maker.__name__: maker
    for maker in (
        wrong_end,
        too_large,
        unknown_frame,
        heartbeat_with_payload,
        heartbeat_on_a_channel,
        tiny_method,
        unknown_method,
        method_of_the_server,
        cut_method,
        method_with_more,
        broken_arguments,
        deep_arguments,
        channel_that_is_closed,
        channel_opened_twice,
        channel_beyond_the_bound,
        channel_method_on_zero,
        connection_method_on_a_channel,
        refused,
        content_without_publish,
        method_instead_of_content,
        body_instead_of_header,
        header_of_another_class,
        cut_header,
        broken_properties,
        impossible_flags,
        too_much_body,
        endless_body,
        refused_content,
        publish_to_nowhere,
        names_in_arguments,
    )
}
"""Faults on a connection on which channel 1 is open."""


def make_case(chance: random.Random) -> Case:
    """Return the next case: a fifth each are handshake faults, truncated and corrupted streams, the rest channel faults."""
    kind = chance.random()
    if kind < 0.2:
        name = chance.choice(list(HANDSHAKE_FAULTS))
        data, answers = HANDSHAKE_FAULTS[name](chance)
        return Case(name, data, frozenset(answers.split("|")), halts=True)
    if kind < 0.4:
        stream = bytearray(b"".join(mutate(chance, CONVERSATION)))
        for _ in range(chance.randrange(4)):
            stream[chance.randrange(len(stream))] = chance.randrange(256)
        return Case(
            "truncated_stream",
            HANDSHAKE + bytes(stream[: chance.randrange(len(stream))]),
            frozenset(ANY_ANSWER.split("|")),
            halts=True,
        )
    if kind < 0.6:
        data, answers = corrupted_stream(chance)[0], ANY_ANSWER
        return Case("corrupted_stream", HANDSHAKE + data + CLOSE, frozenset(answers.split("|")))
    name = chance.choice(list(CHANNEL_FAULTS))
    data, answers = CHANNEL_FAULTS[name](chance)
    return Case(name, HANDSHAKE + data + CLOSE, frozenset(answers.split("|")))
