"""Attacks over HTTP by peers that have not logged in."""

from __future__ import annotations

import base64
import contextlib
import zlib

from tests.faults.attacks.attack import Target, attack
from tests.support.http_client import HttpApi
from tests.support.raw_sockets import answer, connect, many_connections

MANY = 300
"""Sockets of one attack."""
WRONG = base64.b64encode(b"guest:wrong").decode()


def status(found: bytes) -> int:
    """Return the status of an answer; 0 if there is none, as the connection was ended first."""
    return int(found[9:12]) if found.startswith(b"HTTP/1.") else 0


def is_served(target: Target) -> None:
    assert target.api.get("whoami")["name"] == "guest"


@attack("http", "socket", logged_in=False)
def many_http_connections_say_nothing(target: Target) -> None:
    with many_connections(target.http, MANY, b""):
        is_served(target)


@attack("http", "socket", logged_in=False)
def many_requests_stop_within_the_head(target: Target) -> None:
    with many_connections(target.http, MANY, b"GET /api/whoami HTTP/1.1\r\nHost: x\r\nX: "):
        is_served(target)


@attack("http", "socket", logged_in=False)
def many_requests_stop_within_the_body(target: Target) -> None:
    with many_connections(
        target.http, MANY, b"POST /api/login HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nusername="
    ):
        is_served(target)


@attack("http", "socket", logged_in=False)
def a_head_arrives_byte_by_byte(target: Target) -> None:
    with connect(target.http) as peer, contextlib.suppress(OSError):
        for byte in b"GET /api/whoami HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 7000 + b"\r\n\r\n":
            peer.sendall(bytes([byte]))


@attack("http", "socket", logged_in=False)
def many_requests_in_one_write(target: Target) -> None:
    request = b"GET /api/whoami HTTP/1.1\r\nHost: x\r\n\r\n"
    found = answer(target.http, request * 2000)
    assert set(found.split(b"HTTP/1.1 ")[1:][0][:3].split()) <= {b"401", b"400"}


@attack("http", "header", logged_in=False)
def very_many_headers(target: Target) -> None:
    head = b"".join(b"X-%d: y\r\n" % number for number in range(100_000))
    assert status(answer(target.http, b"GET /api/whoami HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n")) in (
        0,
        400,
        431,
    )


@attack("http", "header", logged_in=False)
def long_headers(target: Target) -> None:
    for head in (b"X: " + b"y" * 2_000_000, b"X" * 2_000_000 + b": y"):
        found = answer(target.http, b"GET /api/whoami HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n\r\n")
        assert status(found) in (0, 400, 431)


@attack("http", "header", logged_in=False)
def logins_of_full_length(target: Target) -> None:
    for text in (b"u" * 5000 + b":p", b"u:" + b"p" * 5000, b":" * 5000, bytes(5000), b"\xff" * 5000):
        login = base64.b64encode(text)
        head = b"GET /api/whoami HTTP/1.1\r\nHost: x\r\nAuthorization: Basic " + login + b"\r\n\r\n"
        assert status(answer(target.http, head)) in (0, 400, 401)


@attack("http", "header", logged_in=False)
def cookies_and_ranges_of_many_parts(target: Target) -> None:
    for name, value in (
        (b"Cookie", b"a=b; " * 1500),
        (b"Range", b"bytes=" + b"0-0," * 1500 + b"0-0"),
        (b"Accept-Encoding", b"gzip;q=0.1," * 600),
        (b"Accept", b"a/b;q=0.1," * 700),
        (b"If-None-Match", b'"a",' * 1500),
        (b"Content-Type", b"text/html; " + b"a=b;" * 1500),
    ):
        for path in (b"/", b"/api/whoami"):
            request = b"GET " + path + b" HTTP/1.1\r\nHost: x\r\n" + name + b": " + value + b"\r\n\r\n"
            assert status(answer(target.http, request)) < 500


@attack("http", "name", logged_in=False)
def paths_of_very_many_parts(target: Target) -> None:
    for path in (
        b"/api" + b"/a" * 3900,
        b"/" + b"../" * 2600,
        b"/api/queues/" + b"%2f" * 2600,
        b"/?" + b"a=b&" * 1900,
    ):
        assert status(answer(target.http, b"GET " + path + b" HTTP/1.1\r\nHost: x\r\n\r\n")) < 500


@attack("http", "body", logged_in=False)
def a_body_of_chunks_of_one_byte(target: Target) -> None:
    head = b"POST /api/login HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert status(answer(target.http, head + b"1\r\na\r\n" * 200_000)) in (0, 400, 413)


@attack("http", "body", logged_in=False)
def a_large_form(target: Target) -> None:
    form = b"a=1&" * 2_400_000
    head = f"POST /api/login HTTP/1.1\r\nHost: x\r\nContent-Length: {len(form)}\r\n\r\n"
    assert status(answer(target.http, head.encode() + form)) in (0, 413)


@attack("http", "body", logged_in=False)
def a_compressed_body(target: Target) -> None:
    body = zlib.compress(bytes(200_000_000), wbits=31)
    head = f"POST /api/login HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n"
    assert status(answer(target.http, head.encode() + body)) in (0, 413, 415)


@attack("http", "body", logged_in=False)
def a_large_body_of_a_stranger(target: Target) -> None:
    stranger = HttpApi(target.http, "guest", "wrong")
    for method, path in (("POST", "definitions"), ("PUT", "queues/%2f/q"), ("POST", "queues/%2f/q/get")):
        with contextlib.suppress(OSError):
            assert stranger.ask(method, path, b"[" * 5_000_000).status in (401, 413)


@attack("http", "login", logged_in=False)
def many_wrong_http_logins(target: Target) -> None:
    data = f"GET /api/whoami HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {WRONG}\r\n\r\n".encode()
    with many_connections(target.http, MANY, data):
        is_served(target)
