"""Conversations and requests in which a text may be too long to be a name or a routing key in AMQP.

A conversation declares a queue with such arguments, and lets messages die in it in several ways: by a reject, an expiry or a
length limit. A fault that accepts the text shows when a dead letter is logged, got or delivered.
"""

from __future__ import annotations

import random
from typing import Any, Final

from pamqp import base, commands

from tests.support.raw_client import content, encoded, made

SIZES: Final = (0, 1, 127, 254, 255, 256, 257, 300, 1000, 20_000)
"""Bytes of names and routing keys, of which AMQP transfers 255 at most."""
LONGEST: Final = 255

Request = tuple[str, str, Any]
"""Method, path after `/api/`, and the value of the body."""


def random_text(chance: random.Random) -> str:
    """Return a text of a size around the limit, of one or two bytes a character."""
    size = chance.choice(SIZES)
    text = "\u00e9" * (size // 2) if chance.random() < 0.3 else "k" * size
    return text + "k" * (size - len(text.encode()))


def too_long(text: str) -> bool:
    return len(text.encode()) > LONGEST


def names_in_arguments(chance: random.Random) -> tuple[bytes, str]:
    """Return a conversation that declares a queue, maybe with names that are too long, and lets messages die in it."""
    work, dead, exchange = (f"fuzz-{chance.randrange(2**48):x}-{kind}" for kind in "wdx")
    key = random_text(chance)
    target = exchange if chance.random() < 0.8 else random_text(chance)
    arguments: dict[str, Any] = {"x-dead-letter-exchange": target, "x-expires": 60_000}
    if chance.random() < 0.8:
        arguments["x-dead-letter-routing-key"] = key
    arguments |= chance.choice([{}, {"x-message-ttl": 0}, {"x-max-length": 1}])
    if chance.random() < 0.3:
        arguments["x-queue-type"] = "quorum"
    alternate = random_text(chance)
    dies: list[base.Frame] = [
        chance.choice(
            [
                made(commands.Basic.Get, queue=work),
                made(commands.Basic.Consume, queue=work, consumer_tag="work"),
            ]
        ),
        made(commands.Basic.Nack, delivery_tag=0, multiple=True, requeue=False),
    ]
    reads: list[base.Frame] = [
        made(commands.Basic.Get, queue=dead, no_ack=True),
        made(commands.Basic.Consume, queue=dead, consumer_tag="dead", no_ack=True),
    ]
    is_waiting = chance.random() < 0.5
    steps: list[base.Frame] = [
        made(commands.Queue.Declare, queue=work, durable=True, arguments=arguments),
        made(
            commands.Exchange.Declare,
            exchange=exchange,
            exchange_type="fanout",
            durable=True,
            auto_delete=True,
            arguments={"alternate-exchange": alternate} if chance.random() < 0.3 else {},
        ),
        made(commands.Queue.Declare, queue=dead, durable=True, arguments={"x-expires": 60_000}),
        made(commands.Queue.Bind, queue=dead, exchange=exchange),
        made(commands.Confirm.Select),
    ]
    ends: list[base.Frame] = [
        made(commands.Queue.Delete, queue=work),
        made(commands.Queue.Delete, queue=dead),
    ]
    parts = [encoded(step) for step in steps + (reads if is_waiting else [])]
    publish = encoded(made(commands.Basic.Publish, exchange="", routing_key=work))
    for number in range(chance.randrange(1, 4)):
        properties = commands.Basic.Properties(delivery_mode=chance.choice([1, 2]))
        parts += [publish, content(str(number).encode(), properties)]
    parts += [encoded(step) for step in dies + ([] if is_waiting else reads) + ends]
    refused = too_long(arguments.get("x-dead-letter-routing-key", "")) or too_long(target)
    if isinstance(found := steps[1], commands.Exchange.Declare) and found.arguments:
        refused = refused or too_long(alternate)
    return b"".join(parts), "channel 406" if refused else "ok"


def request_with_a_name(chance: random.Random) -> tuple[Request, frozenset[str]]:
    """Return a request with a text that may be too long, and the statuses that the broker may answer.

    Some replay dead letters whose headers name the text, from a queue that others declare, bind and fill.
    """
    text = random_text(chance)
    refused = frozenset({"400"}) if too_long(text) else frozenset({"201", "204"})
    replayed = frozenset({"200", "201", "204", "404"})
    key = chance.choice(("dead-letter-exchange", "dead-letter-routing-key", "alternate-exchange"))
    kept = {"durable": True, "arguments": {"x-max-length": 20}}
    letter = {"warren-dead-reason": "fuzz", "warren-exchange": "amq.fanout", "warren-key": text}
    body = {"routing_key": "letters", "payload": "x", "payload_encoding": "string"}
    declared = {
        "type": "fanout",
        "auto_delete": False,
        "durable": False,
        "arguments": {"alternate-exchange": text},
    }
    shovel = {"src-uri": "amqp://", "dest-uri": "amqp://", "src-queue": "a", "dest-queue": text}
    if chance.random() < 0.5:
        shovel |= {"src-queue": text, "dest-queue": "b"}
    choices: list[tuple[Request, frozenset[str]]] = [
        (("PUT", "policies/shop/fuzz.name", {"pattern": "^none$", "definition": {key: text}}), refused),
        (("PUT", f"queues/shop/fuzz.{chance.randrange(2**48):x}", _expiring(text)), refused),
        (("PUT", f"exchanges/shop/fuzz.{len(text)}", declared), refused | {"400"}),
        (("PUT", "queues/shop/letters", kept), replayed),
        (("POST", "bindings/shop/e/amq.fanout/q/letters", {}), replayed),
        *(
            (
                (
                    "POST",
                    "exchanges/shop/amq.default/publish",
                    {**body, "properties": {"delivery_mode": 2, "headers": letter}},
                ),
                replayed,
            )
            for _ in range(2)
        ),
        *(
            (("POST", "warren/queues/shop/letters/messages/replay", {"all": True}), replayed)
            for _ in range(2)
        ),
    ]
    if too_long(text):
        choices.append((("PUT", "parameters/shovel/shop/fuzz", {"value": shovel}), refused))
        choices.append(
            (
                (
                    "POST",
                    "exchanges/shop/amq.fanout/publish",
                    {**body, "routing_key": text, "properties": {}},
                ),
                refused,
            )
        )
    return chance.choice(choices)


def _expiring(key: str) -> dict[str, Any]:
    arguments = {
        "x-expires": 1000,
        "x-dead-letter-exchange": "amq.fanout",
        "x-dead-letter-routing-key": key,
    }
    return {"durable": True, "arguments": arguments}
