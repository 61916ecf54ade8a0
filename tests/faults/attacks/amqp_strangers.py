"""Attacks over AMQP by peers that have not logged in."""

from __future__ import annotations

import contextlib
import struct

from tests.faults.attacks.attack import Target, attack
from tests.support.frames import CONNECTION_START_OK, frame, long, method, short
from tests.support.raw_client import PROTOCOL_HEADER, RawClient
from tests.support.raw_sockets import many_connections, until_it_ends

MANY = 300
"""Sockets of one attack."""
FIRST_FRAME = 8192
"""Largest frame before connection.tune, with its head and its end."""


def start_ok(properties: bytes, *, mechanism: str = "PLAIN", login: bytes = b"\0guest\0wrong") -> bytes:
    arguments = long(properties) + short(mechanism) + long(login) + short("en_US")
    return method(0, CONNECTION_START_OK, arguments)


def is_served(target: Target) -> None:
    with RawClient(target.amqp) as peer:
        peer.connect().close()


@attack("amqp", "socket", logged_in=False)
def many_connections_say_nothing(target: Target) -> None:
    with many_connections(target.amqp, MANY, b""):
        is_served(target)


@attack("amqp", "socket", logged_in=False)
def many_connections_stop_within_the_protocol_header(target: Target) -> None:
    with many_connections(target.amqp, MANY, PROTOCOL_HEADER[:5]):
        is_served(target)


@attack("amqp", "socket", logged_in=False)
def many_connections_stop_within_the_login(target: Target) -> None:
    data = PROTOCOL_HEADER + start_ok(b"")
    with many_connections(target.amqp, MANY, data[:-3]):
        is_served(target)


@attack("amqp", "socket", logged_in=False)
def many_connections_speak_http(target: Target) -> None:
    with many_connections(target.amqp, MANY, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 100) as peers:
        for peer in peers:
            until_it_ends(peer)
    is_served(target)


@attack("amqp", "socket", logged_in=False)
def a_login_arrives_byte_by_byte(target: Target) -> None:
    with RawClient(target.amqp) as peer:
        peer.greet()
        for byte in start_ok(short("k") + b"S" + long(b"x" * 7000)):
            with contextlib.suppress(OSError):
                peer.send_bytes(bytes([byte]))
        with contextlib.suppress(OSError):
            peer.finish()


@attack("amqp", "login", logged_in=False)
def many_wrong_passwords(target: Target) -> None:
    with many_connections(target.amqp, MANY, PROTOCOL_HEADER + start_ok(b"")) as peers:
        is_served(target)
        for peer in peers:
            until_it_ends(peer)


@attack("amqp", "login", logged_in=False)
def long_names_and_passwords(target: Target) -> None:
    login = b"\0" + b"u" * 3900 + b"\0" + b"p" * 3900
    with many_connections(target.amqp, MANY, PROTOCOL_HEADER + start_ok(b"", login=login)) as peers:
        for peer in peers:
            until_it_ends(peer)


@attack("amqp", "login", logged_in=False)
def logins_of_zeros(target: Target) -> None:
    with many_connections(target.amqp, MANY, PROTOCOL_HEADER + start_ok(b"", login=bytes(7900))) as peers:
        for peer in peers:
            until_it_ends(peer)


@attack("amqp", "table", logged_in=False)
def client_properties_of_very_many_values(target: Target) -> None:
    field = short("") + b"V"
    properties = field * (7900 // len(field))
    with many_connections(target.amqp, MANY, PROTOCOL_HEADER + start_ok(properties)) as peers:
        for peer in peers:
            until_it_ends(peer)


@attack("amqp", "table", logged_in=False)
def deep_client_properties(target: Target) -> None:
    properties = b""
    while len(properties) < 7800:
        properties = short("") + b"F" + long(properties)
    with many_connections(target.amqp, MANY, PROTOCOL_HEADER + start_ok(properties)) as peers:
        for peer in peers:
            until_it_ends(peer)


@attack("amqp", "number", logged_in=False)
def frames_that_announce_gigabytes(target: Target) -> None:
    head = struct.pack(">BHI", 1, 0, 2**32 - 1)
    with many_connections(target.amqp, MANY, PROTOCOL_HEADER + head + bytes(FIRST_FRAME)) as peers:
        for peer in peers:
            until_it_ends(peer)


@attack("amqp", "socket", logged_in=False)
def heartbeats_without_a_login(target: Target) -> None:
    with many_connections(target.amqp, MANY, PROTOCOL_HEADER + frame(8, 0, b"") * 1000) as peers:
        for peer in peers:
            until_it_ends(peer)
