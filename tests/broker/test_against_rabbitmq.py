"""The same random declares, binds, deletes and publishes at Warren and at RabbitMQ: the same answers, word for word.

Skips where RabbitMQ is not installed. More rounds: raise `SEEDS`.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator

import pytest
from pamqp import base, commands

from tests.support.inprocess import InProcess
from tests.support.peer import Peer, described, made
from tests.support.rabbitmq import RabbitMQ

SEEDS = 25
STEPS = 60
QUEUES = ["q1", "q2", "q3"]
EXCHANGES = ["x1", "x2", "x3"]
SOURCES = [*EXCHANGES, "amq.direct", "amq.topic", "amq.fanout", "amq.headers", ""]
KEYS = ["", "a", "a.b", "#", "*", "a.*", "q1"]
NAMES = ("queue", "exchange", "destination", "source", "routing_key")
QUEUE_ARGUMENTS: list[dict[str, object]] = [
    {},
    {},
    {"x-max-length": 2},
    {"x-message-ttl": 100_000},
    {"x-max-length": 2, "x-overflow": "reject-publish"},
    {"x-max-length": -1},
    {"x-overflow": "bad"},
    {"x-expires": 0},
]

Step = tuple[int, base.Frame]
"""Which of two connections says what."""


def step(chance: random.Random) -> base.Frame:
    def some(*, of: float = 0.5) -> bool:
        return chance.random() < of

    pick = chance.choice
    arguments: dict[str, object] = pick([{}, {}, {"k": 1}, {"k": True}])
    makers: list[tuple[int, Callable[[], base.Frame]]] = [
        (
            16,
            lambda: made(
                commands.Queue.Declare,
                queue=pick(QUEUES),
                durable=some(),
                exclusive=some(of=0.3),
                auto_delete=some(of=0.3),
                passive=some(of=0.1),
                arguments=pick(QUEUE_ARGUMENTS),
            ),
        ),
        (
            16,
            lambda: made(
                commands.Exchange.Declare,
                exchange=pick(SOURCES),
                exchange_type=pick(["direct", "topic", "fanout", "headers"]),
                durable=some(),
                auto_delete=some(of=0.2),
                internal=some(of=0.1),
                passive=some(of=0.1),
                arguments=pick([{}, {}, {"alternate-exchange": pick(SOURCES)}, {"alternate-exchange": 5}]),
            ),
        ),
        (
            16,
            lambda: made(
                commands.Queue.Bind,
                queue=pick(QUEUES),
                exchange=pick(SOURCES),
                routing_key=pick(KEYS),
                arguments=arguments,
            ),
        ),
        (
            8,
            lambda: made(
                commands.Queue.Unbind,
                queue=pick(QUEUES),
                exchange=pick(SOURCES),
                routing_key=pick(KEYS),
                arguments=arguments,
            ),
        ),
        (
            10,
            lambda: made(
                commands.Exchange.Bind,
                destination=pick([*EXCHANGES, ""]),
                source=pick(SOURCES),
                routing_key=pick(KEYS),
                arguments=arguments,
            ),
        ),
        (
            4,
            lambda: made(
                commands.Exchange.Unbind,
                destination=pick([*EXCHANGES, ""]),
                source=pick(SOURCES),
                routing_key=pick(KEYS),
                arguments=arguments,
            ),
        ),
        (
            2,
            lambda: made(
                commands.Queue.Delete, queue=pick(QUEUES), if_unused=some(of=0.4), if_empty=some(of=0.4)
            ),
        ),
        (3, lambda: made(commands.Exchange.Delete, exchange=pick(SOURCES), if_unused=some(of=0.6))),
        (4, lambda: made(commands.Queue.Purge, queue=pick(QUEUES))),
        (
            21,
            lambda: made(
                commands.Basic.Publish, exchange=pick(SOURCES), routing_key=pick(KEYS), mandatory=True
            ),
        ),
    ]
    (make,) = chance.choices([maker for _, maker in makers], [weight for weight, _ in makers])
    return make()


class Side:
    """One of the two brokers, with two connections and names that nothing else uses."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.prefix = uuid.uuid4().hex
        self.peers = [self.connect(), self.connect()]

    def connect(self) -> Peer:
        peer = Peer(self.url).connect()
        self.open(peer)
        return peer

    def open(self, peer: Peer) -> None:
        peer.open()
        peer.call(commands.Confirm.Select(), 1, commands.Confirm.SelectOk)

    def name(self, name: object) -> object:
        return f"{self.prefix}{name}" if name in QUEUES or name in EXCHANGES else name

    def take(self, who: int, asked: base.Frame) -> str:
        """Carry out one step: the answer, without the prefix."""
        peer = self.peers[who]
        command = made(type(asked), **dict(asked))
        for field in NAMES:
            if hasattr(command, field):
                setattr(command, field, self.name(getattr(command, field)))
        if hasattr(command, "arguments"):
            command.arguments = {
                key: self.name(value) if key == "alternate-exchange" else value
                for key, value in command.arguments.items()
            }
        if isinstance(command, commands.Basic.Publish):
            peer.publish(
                command.exchange or "",
                command.routing_key or "",
                b"x",
                commands.Basic.Properties(headers={"k": 1}),
                mandatory=True,
            )
        else:
            peer.send(command)
        found = peer.read_method()[1]
        returned = isinstance(found, commands.Basic.Return)
        if returned:
            peer.read()
            peer.read()
            found = peer.read_method()[1]
        if isinstance(found, commands.Channel.Close):
            peer.send(commands.Channel.CloseOk())
            self.open(peer)
        if isinstance(found, commands.Basic.Ack | commands.Basic.Nack):
            return f"returned, then {found.name}" if returned else found.name
        return described(found).replace(self.prefix, "")

    def end(self) -> None:
        self.peers[1].close()
        peer = self.peers[0]
        for exchange in EXCHANGES:
            command = made(commands.Exchange.Delete, exchange=self.name(exchange))
            peer.call(command, 1, commands.Exchange.DeleteOk)
        for queue in QUEUES:
            peer.call(made(commands.Queue.Delete, queue=self.name(queue)), 1, commands.Queue.DeleteOk)
        peer.close()


@pytest.fixture(scope="module")
def warren() -> Iterator[InProcess]:
    with InProcess() as broker:
        yield broker


@pytest.mark.parametrize("seed", range(SEEDS))
def test_both_say_the_same(rabbitmq: RabbitMQ, warren: InProcess, seed: int) -> None:
    chance = random.Random(seed)
    judge, judged = Side(rabbitmq.url), Side(warren.url)
    said: list[str] = []
    try:
        for _ in range(STEPS):
            who, asked = chance.randrange(2), step(chance)
            expected, found = judge.take(who, asked), judged.take(who, asked)
            said.append(f"{who}: {described(asked)} -> {expected}")
            assert found == expected, "\n".join(said)
    finally:
        judge.end()
        judged.end()
