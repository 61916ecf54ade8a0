"""Access decisions by tokens: what each token may do, asked over AMQP, and their reference.

`python -m tests.conformance.oauth2.decisions HOST PORT KEY.pem` writes the reference again. It needs a new RabbitMQ with the
plugin rabbitmq_auth_backend_oauth2, `auth_backends.1 = oauth2`, `auth_oauth2.resource_server_id = rabbitmq`,
`auth_oauth2.default_key = rsa`, the public key of KEY.pem as `auth_oauth2.signing_keys.rsa`, and CONF.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, Final

import pika
from pika.exceptions import AMQPConnectionError, ChannelClosedByBroker

from tests.support.tokens import Issuer

REFERENCE: Final = Path(__file__).with_name("rabbitmq-4.3.6.json")
CONF: Final = """
auth_oauth2.additional_scopes_key = roles extra.nested
auth_oauth2.scope_aliases.developer = rabbitmq.read:%2F/dev* rabbitmq.write:%2F/dev*
auth_oauth2.preferred_username_claims.1 = user_name
"""
ALL: Final = "rabbitmq.read:*/* rabbitmq.write:*/* rabbitmq.configure:*/*"
QUEUES: Final = ("dev.q", "dev.a.a", "a b", "a/b", "*", "bob")
EXCHANGES: Final = {"dev.x": "direct", "dev.t": "topic", "t": "topic"}
KEYS: Final = ("a.b", "log", "x*y", "")

SCOPES: Final = (
    *(
        "read:*/*",
        "read:*",
        "read:*/*/*",
        "read:%2F/*",
        "read:%2f/dev*",
        "read://dev*",
        "read:/dev*",
        "read:%2F/*.q",
    ),
    *(
        "read:%2F/*a",
        "read:%2F/*.a",
        "read:%2F/*a*a",
        "read:%2F/**",
        "read:%2F/dev.q*",
        "read:%2F/dev.q**",
        "read:%2F/dev.?",
    ),
    *(
        "read:%2F/*dev.q",
        "read:%2F/**dev.q",
        "read:%2F/d*v*q",
        "read:%2F/",
        "read:%2F",
        "read:",
        "read",
        "READ:*/*",
    ),
    *(
        "read:%2F/a+b",
        "read:%2F/a%20b",
        "read:%2F/a%2Fb",
        "read:%2F/a%2fb",
        "read:%2F/a%2",
        "read:%2F/%zz",
        "read:%2F/%2A",
    ),
    *(
        "read:%252F/*",
        "read:other/*",
        "read:*2F/*",
        "read:*%2F/*",
        "read:%2F/*/*/*",
        "read:%2F/dev.q/",
        "write:*/*",
    ),
    *(
        "write:*/*/*",
        "write:%2F/dev*/a.*",
        "write:%2F/dev*/*b",
        "write:%2F/t/log",
        "write:%2F/dev.t/",
        "write:%2F/*/x%2Ay",
    ),
    *(
        "write:%2F/dev.x",
        "configure:*/*",
        "configure:%2F/dev*",
        "configure:%2F/new",
        "delete:*/*",
        "tag:administrator",
    ),
    *(
        "read:{vhost}/*",
        "read:%2F/{user_name}",
        "read:%2F/{nothing}",
        "read:%2F/{user_name",
        "read:%2F/user_name}",
    ),
    *("read:%2F/{}*", "read:%2F/{a.b}*", "read:%2F/dev.{letter}", "{kind}:%2F/*", "read:%2F/{number}"),
)
"""Scopes, without their prefix, each of which a token has alone; besides it may only open the virtual host."""
CLAIMS: Final[tuple[dict[str, Any], ...]] = (
    {"scope": ALL},
    {"scope": ALL.split()},
    {"scope": ALL.replace(" ", "  ")},
    {"scope": ALL.replace("rabbitmq.", "")},
    {"scope": ALL.replace("rabbitmq.", "other.")},
    {"scope": "RABBITMQ.read:*/*"},
    {"scope": ["rabbitmq.read:*/*", 7]},
    {"scope": "developer"},
    {"scope": "rabbitmq.developer"},
    {"roles": "rabbitmq.read:*/*"},
    {"roles": ["rabbitmq.read:*/*"]},
    {"roles": {"rabbitmq": ["read:*/*"]}},
    {"roles": {"rabbitmq": "read:*/* write:*/*"}},
    {"roles": {"other": ["read:*/*"]}},
    {"extra": {"nested": ["rabbitmq.read:*/*"]}},
    {"extra": [{"nested": ["rabbitmq.read:*/*"]}, {"nested": ["rabbitmq.write:*/*"]}]},
    {"extra": {"nested": ["developer"]}},
    {
        "authorization": {
            "permissions": [{"scopes": ["rabbitmq.read:*/*"]}, {"scopes": ["rabbitmq.write:*/*"]}]
        }
    },
    {"scope": ALL, "aud": ["x", "rabbitmq"]},
    {"scope": ALL, "aud": "x rabbitmq"},
    {"scope": ALL, "aud": "rabbit"},
    {"scope": ALL, "aud": ["rabbitmq.x"]},
    {"scope": ALL, "aud": None},
    {"scope": ALL, "aud": []},
    {"scope": ALL, "exp": None},
    {"scope": ALL, "exp": 1},
    {"scope": ALL, "exp": "99999999999"},
    {"scope": ALL, "user_name": None},
    {"scope": ALL, "sub": None, "user_name": None},
)


def tokens() -> list[tuple[str, dict[str, Any]]]:
    """Return the claims of all tokens, by name."""
    more = {"user_name": "bob", "letter": "q", "kind": "read", "number": 5}
    rows = [(scope, {**more, "scope": f"rabbitmq.{scope} rabbitmq.configure:%2F/~"}) for scope in SCOPES]
    return rows + [(json.dumps(claims), {**more, **claims}) for claims in CLAIMS]


def decide_all(host: str, port: int, issuer: Issuer) -> dict[str, list[str]]:
    """Return what each token is allowed, by the token's name."""
    with _connect(host, port, issuer.token(scope=ALL, user_name="setup")) as admin:
        channel = admin.channel()
        for name in QUEUES:
            channel.queue_declare(name, durable=True)
        for name, kind in EXCHANGES.items():
            channel.exchange_declare(name, kind, durable=True)
        return {name: _decide(host, port, issuer.token(**claims)) for name, claims in tokens()}


def _connect(host: str, port: int, token: str) -> pika.BlockingConnection:
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            host, port, "/", pika.PlainCredentials("ignored", token), connection_attempts=1, socket_timeout=60
        )
    )


def _decide(host: str, port: int, token: str) -> list[str]:
    """Return the names of the operations that a token is allowed."""
    try:
        connection = _connect(host, port, token)
    except AMQPConnectionError as error:
        return ["no vhost" if "530" in repr(error) else "no login"]
    allowed = ["opens"]
    with connection:
        for name in QUEUES:
            _try(
                connection,
                allowed,
                f"read {name}",
                lambda channel, name=name: channel.basic_get(name, auto_ack=True),
            )
        for name in ("dev.new", "new"):
            _try(
                connection,
                allowed,
                f"configure {name}",
                lambda channel, name=name: channel.queue_declare(name, exclusive=True),
            )
        for name in ("", *EXCHANGES):
            for key in KEYS if EXCHANGES.get(name) == "topic" else ("k",):
                _try(
                    connection,
                    allowed,
                    f"write {name} {key}",
                    lambda channel, name=name, key=key: _publish(channel, name, key),
                )
    return allowed


def _publish(channel: Any, exchange: str, key: str) -> None:
    channel.confirm_delivery()
    channel.basic_publish(exchange, key, b"")


def _try(connection: Any, allowed: list[str], name: str, operation: Any) -> None:
    channel = connection.channel()
    try:
        operation(channel)
    except ChannelClosedByBroker as error:
        if error.reply_code != 403:
            raise
        return
    allowed.append(name)
    channel.close()


if __name__ == "__main__":
    began = time.time()
    found = decide_all(sys.argv[1], int(sys.argv[2]), Issuer(Path(sys.argv[3]).read_bytes()))
    REFERENCE.write_text(json.dumps(found, indent=1) + "\n")
    print(len(found), "tokens,", round(time.time() - began), "s")
