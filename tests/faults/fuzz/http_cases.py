"""Faults of clients of the HTTP API: requests whose JSON, head or pattern is wrong, with the allowed statuses."""

from __future__ import annotations

import base64
import copy
import json
import random
from dataclasses import dataclass
from typing import Any, Final

from tests.faults.fuzz.odd_names import request_with_a_name

LOGIN: Final = b"Authorization: Basic " + base64.b64encode(b"guest:guest")
ANY_STATUS: Final = frozenset({"200", "201", "204", "400", "401", "403", "404", "405", "409", "413", "415"})
"""Statuses of requests that are carried out, or refused as a fault of the client."""
ANY_END: Final = ANY_STATUS | {"414", "417", "431", "gone"}
"""Ends of requests whose head is wrong; `gone` is a connection that was closed without an answer."""

VIRTUAL_HOST: Final = "shop"
"""Virtual host that must exist; no case deletes it. Policies in that of another client would concern its queues."""

Template = tuple[str, str, Any]
"""Method, path after `/api/`, and the value of the body."""

TEMPLATES: Final[tuple[Template, ...]] = (
    (
        "PUT",
        "queues/shop/fuzz",
        {"durable": True, "auto_delete": False, "arguments": {"x-max-length": 5, "x-expires": 60000}},
    ),
    (
        "PUT",
        "exchanges/shop/fuzz",
        {"type": "topic", "durable": True, "internal": False, "arguments": {"alternate-exchange": "a"}},
    ),
    (
        "POST",
        "bindings/shop/e/amq.topic/e/amq.fanout",
        {"routing_key": "a.#", "arguments": {"x-match": "all", "n": 1}},
    ),
    (
        "PUT",
        "policies/shop/fuzz",
        {"pattern": "^fuzz", "definition": {"max-length": 10}, "priority": 1, "apply-to": "queues"},
    ),
    (
        "PUT",
        "operator-policies/shop/fuzz",
        {"pattern": "^fuzz", "definition": {"expires": 60000}, "priority": 0},
    ),
    ("PUT", "users/fuzz", {"password": "p", "tags": ["management"]}),
    (
        "PUT",
        "users/fuzz",
        {"password_hash": "", "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": ""},
    ),
    ("PUT", "permissions/shop/fuzz", {"configure": "^fuzz", "write": ".*", "read": ""}),
    ("PUT", "topic-permissions/shop/fuzz", {"exchange": "amq.topic", "write": "^a", "read": "b$"}),
    (
        "PUT",
        "vhosts/fuzz",
        {"description": "d", "tags": "a,b", "default_queue_type": "quorum", "tracing": False},
    ),
    ("PUT", "vhost-limits/fuzz/max-queues", {"value": 1000}),
    ("PUT", "user-limits/fuzz/max-channels", {"value": 1000}),
    ("PUT", "parameters/fuzz/shop/p", {"value": {"a": [1, "two", None]}}),
    ("PUT", "global-parameters/fuzz", {"value": ["a", {"b": 1.5}]}),
    (
        "POST",
        "exchanges/shop/amq.default/publish",
        {
            "properties": {
                "delivery_mode": 2,
                "headers": {"n": 1, "l": ["a"]},
                "expiration": "1",
                "priority": 1,
                "timestamp": 5,
            },
            "routing_key": "fuzz",
            "payload": "text",
            "payload_encoding": "string",
        },
    ),
    (
        "POST",
        "queues/shop/fuzz/get",
        {"count": 2, "ackmode": "ack_requeue_false", "encoding": "auto", "truncate": 10},
    ),
    ("POST", "queues/shop/fuzz/actions", {"action": "sync"}),
    ("POST", "users/bulk-delete", {"users": ["fuzz"]}),
    (
        "POST",
        "definitions",
        {
            "rabbit_version": "4.3.0",
            "users": [{"name": "fuzz", "password_hash": "", "tags": [], "limits": {"max-connections": 1000}}],
            "vhosts": [{"name": "shop"}, {"name": "fuzz", "metadata": {"description": "", "tags": []}}],
            "permissions": [{"user": "fuzz", "vhost": "shop", "configure": "", "write": "a", "read": ".*"}],
            "parameters": [{"component": "fuzz", "vhost": "shop", "name": "p", "value": {}}],
            "policies": [
                {
                    "vhost": "shop",
                    "name": "fuzz",
                    "pattern": "^fuzz",
                    "apply-to": "all",
                    "definition": {"max-length": 1},
                }
            ],
            "queues": [
                {"name": "fuzz", "vhost": "shop", "durable": True, "auto_delete": False, "arguments": {}}
            ],
            "exchanges": [
                {"name": "fuzz.e", "vhost": "shop", "type": "direct", "durable": True, "arguments": {}}
            ],
            "bindings": [
                {
                    "source": "amq.topic",
                    "vhost": "shop",
                    "destination": "amq.fanout",
                    "destination_type": "exchange",
                    "routing_key": "k",
                    "arguments": {},
                }
            ],
        },
    ),
    ("DELETE", "queues/shop/fuzz", None),
    ("DELETE", "vhosts/fuzz", None),
    ("DELETE", "users/fuzz", None),
    ("DELETE", "policies/shop/fuzz", None),
)
"""Valid requests; what they create has few names, so that the broker does not grow."""

PATHS: Final = (
    "overview", "queues", "queues/shop/fuzz", "exchanges", "bindings", "vhosts", "users", "permissions", "policies",
    "definitions", "connections", "channels", "consumers", "nodes", "parameters", "whoami", "health/checks/alarms",
)  # fmt: skip
"""Paths of lists."""

VALUES: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 1, 255, 256, 2**31, 2**32, 2**63 - 1, 2**63, -(2**63) - 1, 2**64, 10**40, 0.5, -0.0, 1e308,
    "", "a", "fuzz", "*", "undefined", "\x00", "\x7f", "é", "\U0001f600", "x" * 256, "x" * 5000, "0", "-1", "1e9",
    "classic", "quorum", "stream", "all", [], {}, [[]], {"": ""}, [None], ["a", ["b"]], [0] * 50, {"a": {"b": {"c": {}}}},
)  # fmt: skip

PARTS: Final = (
    "a", "b", ".", "^", "$", "(", ")", "[", "]", "|", "*", "+", "?", "{2}", "{1,3}", "{0,}", "{1000}", "{",
    "\\", "\\d", "\\w", "\\1", "\\b", "\\p{L}", "\\x41", "(?i)", "(?=a)", "(?!a)", "(?:", "(?<n>", "(?>", "[^a]", "[a-z]",
    "[[:alpha:]]", "\u00e9", "-",
)  # fmt: skip
"""Parts of regular expressions."""


@dataclass(frozen=True)
class HttpCase:
    """All bytes that a client sends on a connection to the HTTP API."""

    kind: str
    data: bytes
    answers: frozenset[str]
    """Allowed statuses; `gone` allows that the connection is closed without an answer."""
    halts: bool = False


def random_pattern(chance: random.Random) -> str:
    """Return a text that may be a regular expression."""
    return "".join(chance.choice(PARTS) for _ in range(chance.randrange(1, 12)))


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return each place of a JSON value that can be replaced: an object or array, and a key or index of it."""
    if isinstance(value, dict):
        keys: list[Any] = list(value)
    elif isinstance(value, list):
        keys = list(range(len(value)))
    else:
        return []
    return [place for key in keys for place in ((value, key), *places(value[key]))]


def changed(chance: random.Random, body: Any) -> Any:
    """Return the body of a request with one to three changes."""
    whole = [copy.deepcopy(body)]
    for _ in range(chance.randint(1, 3)):
        container, key = chance.choice([(whole, 0), *places(whole[0])])
        match chance.randrange(5):
            case 0 if isinstance(container, dict):
                del container[key]
            case 1 if isinstance(container, dict):
                container[chance.choice(["", "name", "vhost", "arguments", "value", "x"])] = chance.choice(
                    VALUES
                )
            case 2 if isinstance(container[key], list):
                container[key] *= chance.choice((2, 40))
            case _:
                container[key] = copy.deepcopy(chance.choice(VALUES))
    return whole[0]


def request(method: str, path: str, body: bytes, *headers: bytes) -> bytes:
    head = [
        f"{method} /api/{path} HTTP/1.1".encode(),
        b"Host: localhost",
        LOGIN,
        b"Connection: close",
        *headers,
    ]
    if body or method in ("PUT", "POST"):
        head.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(head) + b"\r\n\r\n" + body


# -- kinds of faults


def changed_json(chance: random.Random) -> HttpCase:
    method, path, body = chance.choice(TEMPLATES)
    text = b"" if body is None else json.dumps(changed(chance, body)).encode()
    return HttpCase("changed_json", request(method, path, text), ANY_STATUS)


def broken_json(chance: random.Random) -> HttpCase:
    """Return a request whose body is no JSON, or is that in another encoding."""
    method, path, body = chance.choice([each for each in TEMPLATES if each[2] is not None])
    text = json.dumps(body)
    data = bytearray(text.encode())
    at = chance.randrange(len(data))
    match chance.randrange(7):
        case 0:
            del data[at:]
        case 1:
            data[at] = chance.randrange(256)
        case 2:
            data[at:at] = chance.choice(
                [b"NaN", b"-Infinity", b"\\ud800", b'"\\ud800"', b"1e999", b"\x00", b"\xff", b"//", b"'"]
            )
        case 3:
            data = bytearray(text.encode(chance.choice(["utf-16", "utf-32", "utf-8-sig"])))
        case 4:
            data += chance.choice([b"]", b"{}", b"\x00", b" x", b","])
        case 5:
            data[at:at] = chance.choice([b"[", b"{", b'{"a":']) * chance.randrange(1, 200)
        case 6:
            data[at:at] = b"9" * chance.randrange(1, 6000)
    return HttpCase("broken_json", request(method, path, bytes(data)), ANY_STATUS)


def strange_pattern(chance: random.Random) -> HttpCase:
    """Return a request with a text that may be a regular expression."""
    pattern = random_pattern(chance)
    match chance.randrange(4):
        case 0:
            body = {"pattern": pattern, "definition": {"max-length": 1000}}
            data = request(
                "PUT",
                f"{chance.choice(['policies', 'operator-policies'])}/shop/fuzz",
                json.dumps(body).encode(),
            )
        case 1:
            body = {"configure": pattern, "write": pattern, "read": pattern}
            data = request("PUT", "permissions/shop/fuzz", json.dumps(body).encode())
        case 2:
            body = {"exchange": "amq.topic", "write": pattern, "read": pattern}
            data = request("PUT", "topic-permissions/shop/fuzz", json.dumps(body).encode())
        case _:
            escaped = "".join(f"%{byte:02x}" for byte in pattern.encode())
            data = request("GET", f"queues?page=1&use_regex=true&name={escaped}", b"")
    return HttpCase("strange_pattern", data, ANY_STATUS)


def strange_query(chance: random.Random) -> HttpCase:
    names = (
        "page",
        "page_size",
        "name",
        "use_regex",
        "sort",
        "sort_reverse",
        "columns",
        "lengths_age",
        "lengths_incr",
        "msg_rates_age",
        "vhost",
        "%ff",
    )
    values = (
        "",
        "0",
        "1",
        "-1",
        "9" * 30,
        "true",
        "name",
        "a.b.c",
        "%00",
        "%ff%fe",
        "[",
        "NaN",
        "messages_details.rate",
    )
    query = "&".join(f"{chance.choice(names)}={chance.choice(values)}" for _ in range(chance.randrange(1, 6)))
    return HttpCase("strange_query", request("GET", f"{chance.choice(PATHS)}?{query}", b""), ANY_STATUS)


def strange_path(chance: random.Random) -> HttpCase:
    parts = (
        "queues",
        "%2f",
        "fuzz",
        "",
        "..",
        ".",
        "%00",
        "%ff",
        "%",
        "%zz",
        "{}",
        "e",
        "q",
        "amq.topic",
        "a" * 300,
        "*",
        "é".encode().hex(),
    )
    path = "/".join(chance.choice(parts) for _ in range(chance.randrange(1, 8)))
    method = chance.choice(["GET", "HEAD", "OPTIONS", "PATCH", "TRACE"])
    return HttpCase("strange_path", request(method, path, b""), ANY_END)


def corrupted_head(chance: random.Random) -> HttpCase:
    """Return a request for a list with wrong bytes in its head."""
    extra = (
        b"Content-Length: -1", b"Content-Length: 5, 6", b"Transfer-Encoding: chunked, chunked", b"Transfer-Encoding: gzip",
        b"X: \x00", b" folded", b": no name", b"Content-Type: \xff", b"Expect: 100-continue", b"Upgrade: websocket",
        b"Content-Encoding: gzip", b"Authorization: Basic !!!", b"Authorization: Bearer x", b"Origin: null",
        b"Cookie: " + b"a=b;" * 100, b"Range: bytes=0-1",
    )  # fmt: skip
    data = bytearray(request("GET", chance.choice(PATHS), b"", *chance.sample(extra, chance.randrange(3))))
    for _ in range(chance.randrange(4)):
        data[chance.randrange(len(data))] = chance.choice((0, 10, 13, 32, 58, 255, chance.randrange(256)))
    return HttpCase("corrupted_head", bytes(data), ANY_END, halts=True)


def strange_name(chance: random.Random) -> HttpCase:
    """Return a request with a text that may be too long to be a name or a routing key."""
    (method, path, body), answers = request_with_a_name(chance)
    return HttpCase("strange_name", request(method, path, json.dumps(body).encode()), answers)


KINDS: Final = (
    changed_json,
    broken_json,
    strange_pattern,
    strange_query,
    strange_path,
    corrupted_head,
    strange_name,
)


def make_http_case(chance: random.Random) -> HttpCase:
    """Return the next case: two fifths of them have a wrong body."""
    return chance.choices(KINDS, (4, 4, 3, 2, 1, 2, 4))[0](chance)
