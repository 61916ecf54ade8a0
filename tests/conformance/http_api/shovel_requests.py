"""Requests about shovels whose answers are compared: definitions, right and wrong, and paths with right and wrong rights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tests.conformance.http_api.requests import SETTLED, Ask

NAME: Final = "case"
VALID: Final = {"src-uri": "amqp://", "dest-uri": "amqp://", "src-queue": "q"}

TEXTS: Final = (
    "src-exchange",
    "src-exchange-key",
    "src-queue",
    "src-consumer-name",
    "dest-exchange",
    "dest-exchange-key",
    "dest-queue",
)
NUMBERS: Final = ("prefetch-count", "src-prefetch-count", "reconnect-delay")
FLAGS: Final = (
    "src-predeclared",
    "dest-predeclared",
    "add-forward-headers",
    "add-timestamp-header",
    "dest-add-forward-headers",
    "dest-add-timestamp-header",
    "internal",
)
LIMITS: Final = ("src-delete-after", "delete-after", "src-delete-after-duration")
NO_TEXTS: Final = (5, True, None, ["a"], {"a": 1}, 1.5)
VALUES: Final[dict[str, tuple[Any, ...]]] = {
    **dict.fromkeys(TEXTS, (*NO_TEXTS, "x", "ü", 'a"b')),
    **dict.fromkeys(NUMBERS, ("5", True, None, 5, 1.5, 0)),
    **dict.fromkeys(FLAGS, ("true", 1, None, False)),
    **dict.fromkeys(LIMITS, ("never", "queue-length", "x", -1, 0, 5, 1.5, True, None, 315360000, 315360001)),
    "ack-mode": ("no-ack", "on-publish", "on-confirm", "x", 5, None),
    "src-protocol": ("amqp091", "local", "x", 5),
    "dest-protocol": ("amqp091", "local", "x", 5),
    **{
        key: (
            {},
            {"x-expires": 0},
            {"x-expires": "a"},
            {"x-message-ttl": -1},
            {"x-message-ttl": 1.5},
            {"x-dead-letter-exchange": 5},
            {"x-dead-letter-routing-key": "a"},
            {"x-dead-letter-strategy": "x"},
            {"x-max-length": "a"},
            {"x-max-length": None},
            {"x-max-length": [1]},
            {"x-max-length-bytes": -1},
            {"x-max-priority": 256},
            {"x-overflow": "z"},
            {"x-overflow": 5},
            {"x-queue-version": 3},
            {"x-single-active-consumer": "x"},
            {"x-queue-type": "zz"},
            {"x-queue-type": 5},
            {"x-quorum-initial-group-size": 0},
            {"x-max-age": "z"},
            {"x-max-age": 5},
            {"x-initial-cluster-size": 0},
            {"x-queue-leader-locator": "zz"},
            {"x-consumer-timeout": -1},
            {"x-expires": 0, "x-max-length": -1, "foo": 5},
        )
        for key in ("src-queue-args", "dest-queue-args")
    },
    "src-consumer-args": (
        {},
        {"x-priority": "a"},
        {"x-priority": 5},
        {"x-stream-offset": "first"},
        {"x-stream-offset": "zz"},
        {"x-stream-offset": True},
        {"x-stream-offset": 5},
        {"x-consumer-timeout": -1},
        {"x": 1},
    ),
    "dest-publish-properties": (
        {},
        [],
        {"a": 1},
        {"delivery_mode": "2"},
        {"type": 5},
        {"timestamp": 1, "headers": {}},
        "x",
        5,
        {"content_type": "a", "zz": [1, 2]},
    ),
    "internal_owner": (
        {"name": "a", "kind": "b", "virtual_host": 5},
        {"name": "a", "kind": "queue", "virtual_host": "/"},
    ),
}
URIS: Final[tuple[Any, ...]] = (
    "",
    "amqp",
    "amqp:",
    "amqp:/",
    "amqp://",
    "amqp:///",
    "AMQP://",
    "http://h",
    "amqp://h:0",
    "amqp://h:x",
    "amqp://h:65536",
    "amqp://:1",
    "amqp://u:p@",
    "amqp://u:p@/v",
    "amqp://u@",
    "amqp://h/a/b",
    "amqp://h/%2f",
    "amqp://h/%2",
    "amqp://h/%zz",
    "amqp://h/%",
    "amqp://[::1]:1",
    "amqp://[::1]x",
    "amqp://[::1",
    "amqp://h?heartbeat=5",
    "amqp://h?heartbeat=",
    "amqp://h?heartbeat",
    "amqp://h?foo=1",
    "amqp://h?port=1",
    "amqp://h?host=1&heartbeat=x",
    "amqp://?heartbeat=x",
    "amqp://h?auth_mechanism=external",
    "amqp://h?auth_mechanism=nopeX",
    "amqp://h?auth_mechanism=a:b:c",
    "amqps://h?verify=verify_none",
    "amqps://h?verify=nonsensical_x",
    "amqps://h?fail_if_no_peer_cert=x",
    "amqps://h?depth=x",
    "amqps://h?server_name_indication=disable",
    "amqps://h?customize_hostname_check=x",
    "amqps://h?customize_hostname_check=https",
    "amqps://?verify=verify_peer",
    "amqp://h#f",
    "amqp://u:a:b@h",
    "amqp://h?connection_timeout=5&channel_max=x",
    "amqp://h?username=u",
    "amqp://h?password=u",
    "amqp:///nov",
    "amqp://u:p%40@h/v?heartbeat=5&x=y",
    "amqp://h?depth=x",
    "amqp://h/v%20w",
    5,
    None,
    True,
    {},
    [],
    ["amqp://", 5],
    ["http://x", "zz"],
)
WHOLE: Final[tuple[Any, ...]] = (
    {},
    [],
    {"src-uri": "amqp://", "dest-uri": "amqp://"},
    VALID,
    {
        **VALID,
        "foo": "bar",
        "a much longer key than usual": {"with": "nested", "values": [1, 2, 3]},
        "more": "terms that fill the line",
    },
    {
        **VALID,
        "src-exchange": "e",
        "dest-queue": "a",
        "dest-exchange": "b",
        "ack-mode": "no-ack",
        "src-delete-after": 5,
        "zz": 1,
    },
    {**VALID, "dest-queue": "q" * 256},
    {**VALID, "src-protocol": "local", "dest-protocol": "local", "src-prefetch-count": 5},
    {**VALID, "src-protocol": "local", "dest-protocol": "local", "dest-publish-properties": {}},
)


def definitions() -> Iterator[Any]:
    """Return definitions of a shovel, right and wrong ones."""
    yield from WHOLE
    for key, values in VALUES.items():
        for value in values:
            yield {**VALID, key: value}
    for uri in URIS:
        yield {**VALID, "src-uri": uri}


VALIDATED: Final[tuple[Ask, ...]] = tuple(
    Ask("PUT", f"parameters/shovel/%2f/{NAME}", {"value": definition}) for definition in definitions()
)
"""Requests that set a shovel; each replaces the one before."""

BY_URI: Final = {
    "src-uri": "amqp:///%2f",
    "dest-uri": "amqp:///%2f",
    "src-queue": "s.source",
    "dest-queue": "s.destination",
}
BY_EXCHANGE: Final = {
    "src-uri": ["amqp://"],
    "dest-uri": "amqp://guest@/%2f",
    "src-exchange": "amq.topic",
    "src-exchange-key": "a.#",
    "dest-exchange": "amq.fanout",
    "dest-exchange-key": "k",
    "src-delete-after": 100,
    "dest-add-forward-headers": True,
}
UNREACHABLE: Final = {
    "src-uri": "amqp://user:secret@127.0.0.1:1/v?heartbeat=5",
    "dest-uri": ["amqp://user:secret@127.0.0.1:1", "amqp://"],
    "src-queue": "s.source",
    "reconnect-delay": 3600,
}

SHOVEL_ASKS: Final[tuple[Ask, ...]] = (
    Ask("DELETE", f"parameters/shovel/%2f/{NAME}"),
    Ask("GET", "shovels"),
    Ask("PUT", "vhosts/v.s"),
    Ask("PUT", "users/s.policymaker", {"password": "p", "tags": "policymaker"}),
    Ask("PUT", "users/s.monitoring", {"password": "p", "tags": "monitoring"}),
    Ask("PUT", "permissions/%2f/s.policymaker", {"configure": ".*", "write": ".*", "read": ".*"}),
    Ask("PUT", "parameters/shovel/%2f/s.queue", {"value": BY_URI}),
    Ask("PUT", "parameters/shovel/%2f/s.queue", {"value": BY_URI}),
    Ask("PUT", "parameters/shovel/%2f/s.exchange", {"value": BY_EXCHANGE}),
    Ask("PUT", "parameters/shovel/%2f/s.unreachable", {"value": UNREACHABLE}),
    Ask(
        "PUT",
        "parameters/shovel/%2f/s.other",
        {"value": {**BY_URI, "src-uri": "amqp:///v.s"}},
        "s.policymaker",
    ),
    Ask("PUT", "parameters/shovel/%2f/s.other", {"value": BY_URI}, "s.monitoring"),
    Ask("PUT", "parameters/shovel/v.s/s.other", {"value": BY_URI}, "s.policymaker"),
    Ask("PUT", "parameters/shovel/nope/s.other", {"value": BY_URI}),
    Ask("PUT", "parameters/shovel/%2f/s.other", {}),
    Ask("PUT", "parameters/shovel/%2f/s.own", {"value": {**BY_URI, "src-queue": "s.own"}}, "s.policymaker"),
    Ask("GET", SETTLED),
    Ask("GET", "shovels"),
    Ask("GET", "shovels?columns=name,state"),
    Ask("GET", "shovels/%2f"),
    Ask("GET", "shovels/v.s"),
    Ask("GET", "shovels/nope"),
    Ask("GET", "shovels", user="s.policymaker"),
    Ask("GET", "shovels", user="s.monitoring"),
    Ask("GET", "shovels/vhost/%2f/s.queue"),
    Ask("GET", "shovels/vhost/%2f/s.exchange"),
    Ask("GET", "shovels/vhost/%2f/s.unreachable"),
    Ask("GET", "shovels/vhost/%2f/nope"),
    Ask("GET", "shovels/vhost/nope/s.queue"),
    Ask("GET", "shovels/vhost/%2f/s.queue", user="s.policymaker"),
    Ask("GET", "parameters/shovel"),
    Ask("GET", "parameters/shovel/%2f"),
    Ask("GET", "parameters/shovel/%2f/s.unreachable"),
    Ask("GET", "parameters/shovel/%2f/nope"),
    Ask("PUT", "shovels/vhost/%2f/s.queue", {}),
    Ask("POST", "shovels", {}),
    Ask("DELETE", "shovels/vhost/%2f/s.queue/restart", user="s.monitoring"),
    Ask("DELETE", "shovels/vhost/%2f/s.queue/restart"),
    Ask("DELETE", "shovels/vhost/%2f/nope/restart"),
    Ask("DELETE", "shovels/vhost/%2f/nope"),
    Ask("DELETE", "shovels/vhost/nope/s.queue"),
    Ask("DELETE", "shovels/vhost/%2f/s.own", user="s.policymaker"),
    Ask("DELETE", "shovels/vhost/%2f/s.exchange"),
    Ask("DELETE", "parameters/shovel/%2f/s.unreachable"),
    Ask("DELETE", "parameters/shovel/%2f/s.unreachable"),
    Ask("DELETE", "parameters/shovel/%2f/s.queue"),
    Ask("GET", "shovels"),
    Ask("GET", "parameters/shovel"),
    Ask("PUT", "parameters/shovel/v.s/s.other", {"value": BY_URI}),
    Ask("DELETE", "vhosts/v.s"),
    Ask("GET", "shovels"),
    Ask("DELETE", "users/s.policymaker"),
    Ask("DELETE", "users/s.monitoring"),
)
"""Requests about shovels in general, one after the other."""
