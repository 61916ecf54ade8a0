"""The HTTP API under attack: requests of other sites, missing roles, floods, smuggling, guessed passwords, old TLS."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp.http_parser import DeflateBuffer
from aiohttp.web_protocol import RequestHandler

from tests.support.certificates import Authority
from tests.support.http_client import HttpApi
from tests.support.in_process_broker import PATIENCE, InProcessBroker
from tests.support.polling import wait_until
from tests.support.raw_sockets import answer, connect, many_connections, until_it_ends
from warren.broker import BrokerConfig
from warren.broker.connection.descriptor_budget import HTTP_CONNECTIONS
from warren.broker.connection.tls import TlsConfig
from warren.broker.http_api.caller import (
    ADMINISTRATOR,
    ANYBODY,
    IMPLIED,
    MANAGEMENT,
    MONITORING,
    NAMES,
    POLICYMAKER,
)
from warren.broker.http_api.json_body import STEP
from warren.broker.http_api.message_json import properties_json
from warren.broker.http_api.open_connections import OpenConnections
from warren.broker.http_api.routes import ROUTES, Route
from warren.broker.http_api.small_reads import READ_BYTES
from warren.broker.management import time_slices
from warren.broker.store.definitions.definition_rows import PermissionRow, TopicPermissionRow

TAGS = ("", MANAGEMENT, POLICYMAKER, MONITORING, ADMINISTRATOR)


def login(api: HttpApi) -> str:
    return f"Authorization: {api._authorization}\r\n"


# -- pages of other sites


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": "http://other.example"},
        {"Sec-Fetch-Site": "surprise"},
    ],
)
def test_a_page_of_another_site_changes_nothing(api: HttpApi, headers: dict[str, str]) -> None:
    api.put("queues/%2f/kept")
    headers = {**headers, "Content-Type": "text/plain"}

    assert api.ask("DELETE", "queues/%2f/kept", headers=headers).status == 403
    assert api.ask("PUT", "users/evil", {"password": "x", "tags": "administrator"}, headers).status == 403
    assert api.ask("POST", "exchanges/%2f/amq.default/publish", {}, headers).status == 403
    assert api.ask("POST", "login", b"username=guest&password=guest", headers).status == 403
    assert api.ask("GET", "queues/%2f/kept", headers=headers).status == 200
    assert api.ask("GET", "users/evil").status == 404


def test_the_apis_own_page_and_other_clients_may_change_things(api: HttpApi) -> None:
    own = {"Origin": api.base, "Sec-Fetch-Site": "same-origin"}

    assert api.ask("PUT", "queues/%2f/a", {}, own).status == 201
    assert api.ask("PUT", "queues/%2f/b", {}, {"Origin": api.base}).status == 201
    assert api.ask("PUT", "queues/%2f/c", {}, {"Sec-Fetch-Site": "none"}).status == 201
    # A reverse proxy may change the name of the host.
    assert (
        api.ask("PUT", "queues/%2f/d", {}, {"Origin": "https://a", "Sec-Fetch-Site": "same-origin"}).status
        == 201
    )


@pytest.mark.parametrize(
    "kind", ["text/plain", "text/plain; charset=utf-8", "multipart/form-data; boundary=x"]
)
def test_a_body_of_a_form_is_no_json(api: HttpApi, kind: str) -> None:
    """A form of another site can send these without the browser's asking, and text/plain can look like JSON."""
    found = api.ask("POST", "exchanges/%2f/amq.default/publish", b"{}", {"Content-Type": kind})
    assert (found.status, found.body["error"]) == (415, "unsupported_media_type")
    found = api.ask("PUT", "users/evil", b'{"password": "x", "tags": ""}', {"Content-Type": kind})
    assert found.status == 415
    for other in ("application/json", "application/json; charset=utf-8", "application/x-www-form-urlencoded"):
        assert api.ask("PUT", "queues/%2f/q", b"{}", {"Content-Type": other}).status in (201, 204)


# -- regular expressions

SLOW = "^(a+)+$"
NAME = "a" * 200 + "!"
"""A name for which a backtracking engine needs 2 ** 200 steps with that pattern."""


def test_the_pattern_of_a_policy_cannot_keep_the_broker_busy(api: HttpApi) -> None:
    api.put("users/u", {"password": "p", "tags": "policymaker"})
    api.put("permissions/%2f/u", {"configure": ".*", "write": ".*", "read": ".*"})
    user = HttpApi(api.base, "u", "p")
    path = "queues/%2f/" + NAME.replace("!", "%21")
    user.put(path)
    body = {"pattern": SLOW, "definition": {"max-length": 1000}}
    user.put("policies/%2f/slow", body)
    api.put("operator-policies/%2f/slow", body)
    user.put("queues/%2f/aaaa")

    assert user.get("whoami")["name"] == "u"
    assert not user.get(path)["policy"]
    assert user.get("queues/%2f/aaaa")["policy"] == "slow"


def test_the_pattern_of_a_list_cannot_keep_the_broker_busy(api: HttpApi) -> None:
    api.put("queues/%2f/" + NAME.replace("!", "%21"))
    api.put("queues/%2f/aaaa")
    found = api.get(f"queues?page=1&name={SLOW.replace('+', '%2b').replace('^', '%5e')}&use_regex=true")
    assert [each["name"] for each in found["items"]] == ["aaaa"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("policies/%2f/p", {"pattern": r"(a)\1", "definition": {"max-length": 1}}),
        ("operator-policies/%2f/p", {"pattern": r"(a)\1", "definition": {"max-length": 1}}),
        ("permissions/%2f/guest", {"configure": r"(a)\1", "write": ".*", "read": ".*"}),
        ("topic-permissions/%2f/guest", {"exchange": "amq.topic", "write": r"(a)\1", "read": ".*"}),
    ],
)
def test_a_pattern_that_the_engine_lacks_is_refused_with_the_reason(
    api: HttpApi, path: str, body: dict[str, Any]
) -> None:
    found = api.ask("PUT", path, body)
    assert found.status == 400
    assert "back references are not supported" in found.body["reason"]


def test_definitions_name_the_object_whose_pattern_the_engine_lacks(api: HttpApi) -> None:
    policy = {"vhost": "/", "name": "odd", "pattern": "a(?!b)", "definition": {"max-length": 1}}
    api.put("queues/%2f/kept")
    found = api.ask("POST", "definitions", {"policies": [policy]})
    assert found.status == 400
    assert "policies[0] 'odd' in vhost '/'" in found.body["reason"]
    assert "lookahead" in found.body["reason"]


def test_a_stored_pattern_that_is_no_longer_supported_allows_nothing_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Earlier versions took more."""
    config = BrokerConfig(management_port=0, handshake_timeout=PATIENCE, login_failure_delay=0)
    with InProcessBroker(tmp_path, config=config) as broker:
        assert broker.broker is not None
        api = HttpApi(f"http://{broker.broker.management_addresses[0]}")
        api.put("users/u", {"password": "p", "tags": "management"})
        node = broker.broker._node
        assert node is not None
        assert node.access.permissions._definitions is not None
        definitions = node.access.permissions._definitions
        broker.call(lambda: definitions.put(PermissionRow("u", "/", r"(a)\1", ".*", ".*")))
        broker.call(lambda: definitions.put(TopicPermissionRow("u", "/", "amq.topic", r"(a)\1", ".*")))
        api.put("queues/%2f/stored", {"durable": True})
    with InProcessBroker(tmp_path, config=config) as broker:
        assert broker.broker is not None
        user = HttpApi(f"http://{broker.broker.management_addresses[0]}", "u", "p")
        assert user.ask("PUT", "queues/%2f/aa", {}).status == 401
        assert user.ask("GET", "queues/%2f/stored").status == 200
    lines = [line for line in caplog.messages if line.startswith("event=permission.pattern_refused")]
    assert len(lines) == 2
    assert all("user='u' vhost='/' pattern='(a)\\\\1'" in line for line in lines)


# -- roles


def path_of(route: Route) -> str:
    path = route.path.removeprefix("/api/")
    for name, value in (("kind:[qe]", "q"), ("user", "u"), ("unit", "days"), ("within", "1"), ("port", "1")):
        path = path.replace(f"{{{name}}}", value)
    while "{" in path:
        before, _, rest = path.partition("{")
        path = before + "x" + rest.partition("}")[2]
    return path


@pytest.mark.parametrize("tag", TAGS, ids=lambda tag: tag or "none")
def test_each_route_asks_for_its_role(api: HttpApi, tag: str) -> None:
    api.put("users/u", {"password": "p", "tags": tag})
    user = HttpApi(api.base, "u", "p")
    wrong = {}
    for route in ROUTES:
        if route.role == ANYBODY:
            continue
        found = user.ask(route.method, path_of(route), None if route.method == "GET" else {})
        # An administrator's own request may have changed the user.
        api.put("users/u", {"password": "p", "tags": tag})
        allowed = tag in IMPLIED[MANAGEMENT] and tag in IMPLIED[route.role or MANAGEMENT]
        refused = found.status == 401 and found.body.get("reason") in NAMES.values()
        if refused == allowed:
            wrong[f"{route.method} {route.path}"] = found.status, found.body

    assert wrong == {}


def test_each_route_but_those_without_a_login_refuses_strangers(api: HttpApi) -> None:
    stranger = HttpApi(api.base, "nobody", "wrong")
    asked = [route for route in ROUTES if route.role != ANYBODY]

    assert {stranger.ask(route.method, path_of(route)).status for route in asked} == {401}


# -- floods


def test_a_body_without_an_end_is_refused(api: HttpApi) -> None:
    head = f"PUT /api/definitions HTTP/1.1\r\nHost: x\r\n{login(api)}Transfer-Encoding: chunked\r\n\r\n"
    head = head.replace("PUT", "POST")
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"

    assert b" 413 " in answer(api.base, head.encode() + chunk * 11).partition(b"\r\n")[0]


@pytest.mark.parametrize(
    "flood",
    [
        b"".join(b"X-%d: y\r\n" % number for number in range(100_000)),
        b"X: " + b"y" * 1_000_000 + b"\r\n",
        b"X" * 1_000_000 + b": y\r\n",
    ],
    ids=["many headers", "a long value", "a long name"],
)
def test_a_flood_of_headers_is_refused(api: HttpApi, flood: bytes) -> None:
    request = b"GET /api/whoami HTTP/1.1\r\nHost: x\r\n" + login(api).encode() + flood + b"\r\n"

    assert b" 200 " not in answer(api.base, request).partition(b"\r\n")[0]
    assert api.get("whoami")["name"] == "guest"


def test_a_long_path_is_refused(api: HttpApi) -> None:
    found = answer(api.base, b"GET /api/" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n")

    # The answer may be lost with the connection, which is closed before all was read.
    assert found[:13] in (b"HTTP/1.1 400 ", b"HTTP/1.0 400 ", b"")


@pytest.mark.parametrize(
    "beginning",
    [
        b"",
        b"GET /api/whoami HTTP/1.1\r\nHost: x\r\n",
        b"POST /api/login HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nuser",
    ],
    ids=["silent", "half a head", "half a body"],
)
def test_more_slow_clients_than_there_may_be_keep_nobody_out(
    served: InProcessBroker, api: HttpApi, beginning: bytes
) -> None:
    api.get("whoami")
    with contextlib.ExitStack() as stack:
        for _ in range(HTTP_CONNECTIONS + 20):
            sock = stack.enter_context(connect(api.base))
            with contextlib.suppress(OSError):
                sock.sendall(beginning)
        for _ in range(3):
            assert api.get("whoami")["name"] == "guest"
        assert served.broker is not None
        (server,) = served.broker._http
        assert served.call(lambda: len(server._connections)) <= HTTP_CONNECTIONS


@pytest.mark.parametrize(
    "beginning",
    [
        b"",
        b"GET /api/whoami HTTP/1.1\r\nHost: x\r\n",
        b"GET /api/version HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
    ids=["silent", "half a head", "after a response"],
)
def test_a_connection_on_which_no_request_begins_is_closed(beginning: bytes) -> None:
    config = BrokerConfig(management_port=0, handshake_timeout=0.1)
    with InProcessBroker(config=config) as broker:
        assert broker.broker is not None
        with connect(f"http://{broker.broker.management_addresses[0]}") as sock:
            # It may be closed before this thread goes on.
            with contextlib.suppress(OSError):
                sock.sendall(beginning)
            until_it_ends(sock)


def test_a_body_may_take_longer_than_a_head(served: InProcessBroker, api: HttpApi) -> None:
    assert served.broker is not None
    (server,) = served.broker._http
    body = b'{"durable": true}'
    head = f"PUT /api/queues/%2F/slow HTTP/1.1\r\nHost: x\r\n{login(api)}Content-Length: {len(body)}\r\n\r\n"
    with connect(api.base) as slow:
        slow.sendall(head.encode() + body[:5])
        wait_until(
            lambda: len(server._connections) == 1 and not server._connections._deadlines,
            "its head has arrived",
        )
        served.call(lambda: hurry(server._connections))
        with connect(api.base) as silent:
            assert silent.recv(1) == b""
        slow.sendall(body[5:])
        assert slow.recv(13) == b"HTTP/1.1 201 "


def hurry(connections: OpenConnections) -> None:
    """Expect the heads of further requests at once. None may be awaited now."""
    connections.head_seconds = 0.05
    if connections._timer is not None:
        connections._timer.cancel()
        connections._timer = None


class Accepted:
    """Connection that notes whether it was closed."""

    def __init__(self) -> None:
        self.closed = False

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True


def test_the_address_with_the_most_connections_gives_way() -> None:
    connections = OpenConnections(5, 1)
    first, second, third, fourth = ([Accepted() for _ in range(count)] for count in (1, 2, 2, 1))
    for network, some in enumerate((first, second, third, fourth)):
        for each in some:
            assert connections.add(each, f"10.0.0.{network}")

    closed = [each.closed for each in (*first, *second, *third, *fourth)]
    assert closed == [False, True, False, False, False, False]
    assert len(connections) == 5
    assert connections.has_room()


def test_an_address_has_half_of_all_connections_at_most() -> None:
    connections = OpenConnections(4, 1)
    several = [Accepted() for _ in range(3)]
    for each in several:
        assert connections.add(each, "10.0.0.1")
    assert [each.closed for each in several] == [True, False, False]

    busy: list[Any] = several[1:]
    for each in busy:
        connections.begin(each)
    assert not connections.add(Accepted(), "10.0.0.1")
    assert connections.add(Accepted(), "10.0.0.2")
    assert not any(each.closed for each in busy)


@pytest.mark.parametrize("coding", ["Content-Length: %d", "Transfer-Encoding: chunked"])
def test_a_stranger_may_send_a_small_body_only(api: HttpApi, coding: str) -> None:
    form = b"a=1&" * 50_000
    head = f"POST /api/login HTTP/1.1\r\nHost: x\r\n{coding.replace('%d', str(len(form)))}\r\n\r\n"
    body = form if "Length" in coding else b"%x\r\n" % len(form) + form + b"\r\n0\r\n\r\n"

    assert b" 413 " in answer(api.base, head.encode() + body).partition(b"\r\n")[0]


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "GZIP"])
def test_a_compressed_body_is_refused(api: HttpApi, encoding: str) -> None:
    body = zlib.compress(b" " * 1_000_000, wbits=31 if encoding.lower() == "gzip" else 15)

    for path in ("users/u", "queues/%2f/q"):
        found = api.ask("PUT", path, body, {"Content-Encoding": encoding})
        assert (found.status, found.body["error"]) == (415, "unsupported_media_type")
    assert api.ask("PUT", "queues/%2f/q", {}, {"Content-Encoding": "identity"}).status == 201


def test_a_compressed_body_is_not_unpacked_either(api: HttpApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """2 MB can become 2 GB: also that of a request that is refused, and what is left of it is thrown away."""
    unpacked: list[int] = []
    monkeypatch.setattr(DeflateBuffer, "feed_data", lambda *data: unpacked.append(len(data)))
    body = zlib.compress(bytes(2_000_000), wbits=31)
    headers = {"Content-Encoding": "gzip"}
    for path, status in (("login", 415), ("definitions", 415)):
        assert api.ask("POST", path, body, headers).status == status
    assert HttpApi(api.base, "nobody", "wrong").ask("PUT", "users/u", body, headers).status == 401
    assert unpacked == []


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_json_cannot_have_spoils_no_answer(api: HttpApi, number: str) -> None:
    found = api.ask("PUT", "queues/%2f/q", b'{"arguments": {"x-mine": ' + number.encode() + b"}}")
    assert (found.status, found.body["reason"]) == (400, "not_json")
    message = b'{"payload_encoding": "string", "routing_key": "q", "payload": "", "properties": {"headers": {"n": %b}}}'
    found = api.ask("POST", "exchanges/%2f/amq.default/publish", message % number.encode())
    assert (found.status, found.body["reason"]) == (400, "not_json")

    # A data folder of Warren 0.1 may have one in the headers of a message.
    table = b"\4mined" + struct.pack(">d", float(number))
    header = struct.pack(">HHQHI", 60, 0, 0, 0x2000, len(table)) + table
    assert properties_json(header) == {"headers": {"mine": None}}


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**300])
def test_a_number_that_cannot_be_stored_stops_no_later_change(api: HttpApi, number: int) -> None:
    def refusal(method: str, path: str, body: Any) -> str:
        found = api.ask(method, path, body)
        assert found.status == 400, found
        return str(found.body["reason"])

    for path in ("vhost-limits/%2f/max-queues", "user-limits/guest/max-channels"):
        assert "must have at most 64 bits" in refusal("PUT", path, {"value": number})
    vhost = {"component": "vhost-limits", "vhost": "/", "name": "limits", "value": {"max-queues": number}}
    assert "must have at most 64 bits" in refusal("POST", "definitions", {"parameters": [vhost]})
    user = {"name": "u", "password_hash": "", "tags": "", "limits": {"max-channels": number}}
    assert "must have at most 64 bits" in refusal("POST", "definitions", {"users": [user]})
    refusal("PUT", "queues/%2f/q", {"arguments": {"x-max-length": number}})
    api.ask("PUT", "vhosts/v", {"default_queue_type": number})
    policy = {"pattern": "", "definition": {"max-length": number}}
    for path in ("policies", "operator-policies"):
        api.ask("PUT", f"{path}/%2f/p", policy)
        api.ask("PUT", f"{path}/%2f/p", {"pattern": "", "definition": {"max-length": 1}, "priority": number})
    for component in ("shovel", "mine"):
        api.ask("PUT", f"parameters/{component}/%2f/p", {"value": {"number": number}})
    api.ask("PUT", "global-parameters/p", {"value": number})
    api.put("queues/%2f/kept", {"durable": True})
    assert [each["name"] for each in api.get("queues")] == ["kept"]


def test_an_answer_does_not_repeat_what_was_sent(api: HttpApi) -> None:
    message = {"routing_key": "q", "properties": {}, "payload": "!" * 5_000_000, "payload_encoding": "base64"}
    path = "exchanges/%2f/amq.default/publish"
    assert api.ask("POST", path, message).body["reason"] == ["not_base64", "!" * 100]
    message |= {"payload": "", "payload_encoding": "x" * 5_000_000}
    assert api.ask("POST", path, message).body["reason"] == ["unsupported_encoding", "x" * 100]


def test_the_values_of_a_body_are_limited(api: HttpApi) -> None:
    many = b'{"arguments": {"x-mine": [' + b"{}," * 20_000 + b"1]}}"
    found = api.ask("PUT", "queues/%2f/q", many)
    assert (found.status, found.body["error"]) == (413, "payload_too_large")
    assert api.ask("GET", "queues/%2f/q").status == 404


def test_a_large_body_is_for_messages_and_definitions_only(api: HttpApi) -> None:
    api.put("queues/%2f/q")
    text = "x" * 2_000_000
    message = {"routing_key": "q", "properties": {}, "payload": text, "payload_encoding": "string"}
    assert api.ask("PUT", "parameters/shovel/%2f/p", {"value": text}).status == 413
    assert api.ask("POST", "exchanges/%2f/amq.default/publish", message).body == {"routed": True}


def test_a_definition_of_very_many_values_is_refused_and_the_others_with_it(api: HttpApi) -> None:
    queues = [
        {"name": "a", "vhost": "/", "durable": True},
        {"name": "b", "vhost": "/", "durable": True, "arguments": {"x-mine": [{}] * 20_000}},
    ]
    found = api.ask("POST", "definitions", {"queues": queues})
    assert found.status == 400
    assert "queues[1] 'b' in vhost '/': it has more than 10000 values" in found.body["reason"]
    assert api.get("queues") == []


def test_the_loop_serves_others_while_it_parses_a_body(
    served: InProcessBroker, api: HttpApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One step for each turn of the loop, however fast the machine is
    monkeypatch.setattr(time_slices, "SLICE_SECONDS", 0.0)
    assert served.broker is not None
    turns = 0
    ended = threading.Event()
    loop = served._loop

    def count() -> None:
        nonlocal turns
        turns += 1
        if not ended.is_set():
            loop.call_soon(count)

    loop.call_soon_threadsafe(count)
    before = turns
    assert api.ask("POST", "definitions", b'{"queues": [' + b"{}," * 50_000 + b"1]}").status == 400
    ended.set()
    assert turns - before > 50_000 // STEP


# -- smuggling


BODY = b'{"password":"x","tags":""}'
HIDDEN = b"GET /api/overview HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: 0\r\nContent-Length: %d\r\n" % len(HIDDEN),
        b"Content-Length: 0, 5\r\n",
        b"Content-Length: +0\r\n",
        b"Content-Length: -1\r\n",
        b"Content-Length: 0x0\r\n",
        b"Content-Length : 0\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        b"Transfer-Encoding:\x0bchunked\r\n",
        b"X: y\rContent-Length: 0\r\n",
        b"X: y\x00z\r\n",
        b" folded: 1\r\n",
        b"no colon\r\n",
    ],
)
def test_a_request_whose_end_is_ambiguous_is_refused(api: HttpApi, headers: bytes) -> None:
    request = b"PUT /api/users/smuggled HTTP/1.1\r\nHost: x\r\n" + login(api).encode() + headers

    found = answer(api.base, request + b"\r\n0\r\n\r\n" + HIDDEN)

    assert found.count(b"HTTP/1.1 ") <= 1, "the connection goes on after the refusal"
    assert found[:13] in (b"HTTP/1.1 400 ", b"HTTP/1.0 400 ", b""), found[:200]
    assert api.ask("GET", "users/smuggled").status == 404


# -- passwords and TLS


def test_guessed_passwords_are_refused_later_and_later() -> None:
    config = BrokerConfig(management_port=0, login_failure_delay=0.1, handshake_timeout=PATIENCE)
    with InProcessBroker(config=config) as broker:
        assert broker.broker is not None
        api = HttpApi(f"http://{broker.broker.management_addresses[0]}", "guest", "wrong")
        seconds = []
        for attempt in range(4):
            began = time.monotonic()
            if attempt == 2:
                assert api.ask("POST", "login", b"username=guest&password=wrong").status == 401
            else:
                assert api.ask("DELETE", "queues/%2f/x").status == 401
            seconds.append(time.monotonic() - began)

    assert [found >= wanted for found, wanted in zip(seconds, (0.1, 0.2, 0.4, 0.8), strict=True)] == [
        True
    ] * 4


@pytest.fixture(scope="module")
def authority(starts_processes: None, tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> tuple[Path, Path]:
    return authority.issue("server", "/CN=localhost")


@pytest.fixture
def encrypted(certificate: tuple[Path, Path]) -> Iterator[InProcessBroker]:
    tls = TlsConfig(certificate=certificate[0], key=certificate[1], versions=("1.3",))
    config = BrokerConfig(management_port=0, management_tls=True, tls=tls, handshake_timeout=PATIENCE)
    with InProcessBroker(config=config) as broker:
        yield broker


def test_only_the_configured_versions_of_tls_are_served(
    encrypted: InProcessBroker, authority: Authority
) -> None:
    assert encrypted.broker is not None
    port = encrypted.broker.management_addresses[0].port
    found = []
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = authority.client()
        context.minimum_version = context.maximum_version = version
        with socket.create_connection(("127.0.0.1", port), timeout=120) as sock:
            try:
                with context.wrap_socket(sock, server_hostname="localhost") as secure:
                    found.append(str(secure.version()))
            except (ssl.SSLError, ConnectionResetError):
                found.append("refused")

    assert found == ["refused", "TLSv1.3"]


def test_tls_handshakes_that_never_begin_keep_nobody_out(
    encrypted: InProcessBroker, authority: Authority
) -> None:
    assert encrypted.broker is not None
    port = encrypted.broker.management_addresses[0].port
    with many_connections(f"http://127.0.0.1:{port}", HTTP_CONNECTIONS + 20, b""):
        for _ in range(3):
            with (
                socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as sock,
                authority.client().wrap_socket(sock, server_hostname="localhost") as secure,
            ):
                secure.sendall(b"GET /api/version HTTP/1.1\r\nHost: x\r\n\r\n")
                assert secure.recv(13) == b"HTTP/1.1 200 "


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_few_bytes_are_read_at_a_time(
    scheme: str,
    api: HttpApi,
    encrypted: InProcessBroker,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each byte of a body may be a chunk of its own, whose decoding takes ten calls."""
    sizes: list[int] = []
    feed = RequestHandler.data_received

    def feed_and_note(self: RequestHandler, data: bytes) -> None:
        sizes.append(len(data))
        feed(self, data)

    monkeypatch.setattr(RequestHandler, "data_received", feed_and_note)
    body = b" " * 1_000_000 + b"{}"
    head = f"POST /api/definitions HTTP/1.1\r\nHost: x\r\n{login(api)}Content-Length: {len(body)}\r\n"
    request = head.encode() + b"Connection: close\r\n\r\n" + body
    if scheme == "http":
        with connect(api.base) as sock:
            sock.sendall(request)
            assert sock.recv(13) == b"HTTP/1.1 204 "
    else:
        assert encrypted.broker is not None
        port = encrypted.broker.management_addresses[0].port
        with (
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as sock,
            authority.client().wrap_socket(sock, server_hostname="localhost") as secure,
        ):
            secure.sendall(request)
            assert secure.recv(13) == b"HTTP/1.1 204 "
    assert max(sizes) <= READ_BYTES


def test_a_plain_request_to_the_encrypted_port_is_not_answered(encrypted: InProcessBroker) -> None:
    assert encrypted.broker is not None
    port = encrypted.broker.management_addresses[0].port
    with socket.create_connection(("127.0.0.1", port), timeout=120) as sock:
        sock.sendall(b"GET /api/version HTTP/1.1\r\nHost: x\r\n\r\n")
        found = b""
        with contextlib.suppress(ConnectionResetError):
            found = sock.recv(100)

    assert not found.startswith(b"HTTP/")
