"""Random methods of random users under random permissions, compared with RabbitMQ's replies."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from pamqp import base, commands
from pamqp.commands import Basic, Channel, Exchange, Queue

from tests.support.broker_definitions import broker_with_definitions, definitions
from tests.support.rabbitmq import installed
from tests.support.raw_client import RawClient, content, encoded, made

pytestmark = pytest.mark.slow

NAMES = ["a", "b", "ab", "a.b", "amq.topic", "amq.fanout", "missing", ""]
PATTERNS = [
    "",
    ".*",
    "^a",
    "b$",
    "a.b",
    "^(a|b)$",
    "^amq\\.",
    "amq.default",
    "[^x]",
    "^$",
    "\\.",
    "(?i)A",
    "^amq.gen-",
]
TOPICS = ["", ".*", "^{username}", "a\\.b", "^k", "{vhost}"]
KEYS = ["k", "a.b", "u1", "u2.x", "/", "", "a"]
USERS = [f"u{number}" for number in range(25)]
STEPS = 300

Answer = tuple[str, int, str, int, int]


def some_definitions(chance: random.Random) -> dict[str, Any]:
    three = [tuple(chance.choices(PATTERNS, k=3)) for _ in USERS]
    return definitions(
        users=[{"name": name, "password": "p", "tags": ""} for name in USERS],
        vhosts=[],
        permissions=[(name, "/", *patterns) for name, patterns in zip(USERS, three, strict=True)],  # type: ignore[misc]
        topic_permissions=[
            (name, "/", exchange, chance.choice(TOPICS), chance.choice(TOPICS))
            for name in USERS
            for exchange in ("amq.topic", "ab")
            if chance.random() < 0.5
        ],
    )


def some_command(chance: random.Random) -> base.Frame:
    def name() -> str:
        return chance.choice(NAMES)

    def key() -> str:
        return chance.choice(KEYS)

    def successor(argument: str) -> dict[str, str]:
        return {argument: name()} if chance.random() < 0.3 else {}

    def passive() -> bool:
        return chance.random() < 0.2

    makers: list[Callable[[], base.Frame]] = [
        lambda: made(
            Queue.Declare,
            queue=name(),
            durable=True,
            passive=passive(),
            arguments=successor("x-dead-letter-exchange"),
        ),
        lambda: made(
            Exchange.Declare,
            exchange=name(),
            exchange_type=chance.choice(["topic", "topic", "direct"]),
            durable=True,
            passive=passive(),
            arguments=successor("alternate-exchange"),
        ),
        lambda: made(Queue.Bind, queue=name(), exchange=name(), routing_key=key()),
        lambda: made(Queue.Unbind, queue=name(), exchange=name(), routing_key=key()),
        lambda: made(Exchange.Bind, destination=name(), source=name(), routing_key=key()),
        lambda: made(Exchange.Unbind, destination=name(), source=name(), routing_key=key()),
        lambda: made(Queue.Delete, queue=name(), if_unused=chance.random() < 0.5),
        lambda: made(Exchange.Delete, exchange=name()),
        lambda: made(Queue.Purge, queue=name()),
        lambda: made(Basic.Get, queue=name(), no_ack=True),
        lambda: made(Basic.Consume, queue=name(), consumer_tag="t"),
        lambda: made(Basic.Publish, exchange=name(), routing_key=key()),
    ]
    return chance.choice(makers)()


def play(url: str, script: list[tuple[str, base.Frame]]) -> list[Answer]:
    """Return the reply to each user; its channel is new each time."""
    parts = urlsplit(url)
    peers: dict[str, RawClient] = {}
    answers = []
    try:
        for user, command in script:
            if user not in peers:
                peers[user] = RawClient(f"amqp://{user}:p@{parts.hostname}:{parts.port}/").connect()
            peer = peers[user].open()
            peer.send(command)
            if isinstance(command, Basic.Publish):
                peer.send_bytes(content(b"x") + encoded(Basic.Qos(prefetch_count=0)))
            answers.append(answer(peer))
    finally:
        for peer in peers.values():
            peer.abort()
    return answers


def answer(peer: RawClient) -> Answer:
    _, found = peer.read_method()
    if isinstance(found, Channel.Close):
        peer.send(Channel.CloseOk())
        text = re.sub(r"amq\.gen-[\w-]+", "amq.gen-x", found.reply_text)
        return "refused", found.reply_code or 0, text, found.class_id or 0, found.method_id or 0
    peer.send(Channel.Close(200, "", 0, 0))
    while not isinstance(peer.read()[1], Channel.CloseOk):
        pass
    return found.name, 0, "", 0, 0


def test_random_users_get_the_replies_that_rabbitmq_gives() -> None:
    if not installed():
        pytest.skip("rabbitmq-server is not installed")
    chance = random.Random(3)
    what = some_definitions(chance)
    script = [(chance.choice(USERS), some_command(chance)) for _ in range(STEPS)]
    with broker_with_definitions("warren-3.10", what) as url:
        ours = play(url, script)
    with broker_with_definitions("rabbitmq", what) as url:
        theirs = play(url, script)
    for step, (own, other) in enumerate(zip(ours, theirs, strict=True)):
        user, command = script[step]
        assert own == other, f"step {step}: {user} sent {command.name} {dict(command)}"
    refused = {found[1] for found in theirs}
    assert {0, 403, 404, 406} <= refused
    assert commands.Basic.QosOk.name in {found[0] for found in theirs}
