"""Dead letters: the queues that hold them, and their groups by cause."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from warren.broker.http_api.api_error import bad_request, object_not_found
from warren.broker.http_api.call import Call, Response
from warren.broker.http_api.messages.dead_letter import DeadLetter
from warren.broker.http_api.messages.message_filter import decode_properties
from warren.broker.http_api.messages.message_ids import MessageId
from warren.broker.http_api.messages.queue_browser import BEFORE_ALL, STEP, position_of, ready_after
from warren.broker.http_api.resources.messages import readable
from warren.broker.management.json_values import name_text
from warren.broker.management.queue_counts import count_lengths
from warren.broker.management.request import Json
from warren.broker.management.time_slices import run_in_slices
from warren.broker.model.exchange.exchange import Exchange
from warren.broker.model.queue.queue import Queue
from warren.broker.model.stream.stream import Stream
from warren.broker.model.vhost.declarations import Declarations
from warren.broker.model.vhost.vhost import VirtualHost

MOST_SCANNED: Final = 50_000
"""Messages after which grouping ends."""
MOST_GROUPS: Final = 500
"""Most groups. Letters of further causes are counted as `other`."""
MOST_SECONDS: Final = 15.0
"""Seconds after which grouping ends."""
SUFFIX: Final = b".dead"
"""Suffix of the dead letter queues that the SDK declares."""


@dataclass
class Group:
    """Dead letters with one cause.

    :ivar letter: the account of the latest of them.
    :ivar example: its id.
    :ivar first: earliest time at which one of them died first, in milliseconds since 1970; None if none has a time.
    """

    letter: DeadLetter
    example: str
    count: int = 0
    first: int | None = None
    last: int | None = None

    def add(self, letter: DeadLetter, identity: str) -> None:
        self.count += 1
        if letter.first is not None and (self.first is None or letter.first < self.first):
            self.first = letter.first
        if letter.last is None or self.last is None or letter.last >= self.last:
            self.last = letter.last if letter.last is not None else self.last
            self.letter, self.example = letter, identity

    def as_json(self) -> dict[str, Json]:
        queue, kind, reason, error = self.letter.cause
        return {
            "group": self.letter.group,
            "count": self.count,
            "queue": queue,
            "type": kind,
            "reason": reason,
            "exception": self.letter.exception,
            "error": error,
            "example_error": self.letter.as_json()["error"],
            "example": self.example,
            "exchange": self.letter.exchange,
            "routing_key": self.letter.keys[0],
            "first_death": self.first,
            "last_death": self.last,
        }


async def groups(call: Call) -> Response:
    """Group the ready messages of a queue by the cause of their dead-lettering, the most frequent cause first."""
    queue = readable(call)
    if isinstance(queue, Stream):
        raise bad_request(f"{call.name('queue')} is a stream")
    found: dict[str, Group] = {}
    counts = {"scanned": 0, "other": 0}
    end = time.monotonic() + MOST_SECONDS

    def collect() -> Generator[None, None, bool]:
        """Look at the messages, and return whether it were all."""
        position = BEFORE_ALL
        while not queue.deleted:
            messages = yield from ready_after(queue, position, STEP)
            if not messages:
                return True
            for message in messages:
                position = position_of(queue, message)
                counts["scanned"] += 1
                properties = decode_properties(message)
                letter = None if properties is None else DeadLetter.of(properties)
                group = None
                if letter is not None:
                    group = found.get(letter.group)
                    if group is None and len(found) < MOST_GROUPS:
                        group = found[letter.group] = Group(letter, "")
                if group is None or letter is None:
                    counts["other"] += 1
                else:
                    group.add(letter, str(MessageId.of(queue, *position)))
                yield
            if counts["scanned"] >= MOST_SCANNED or time.monotonic() >= end:
                return False
        raise object_not_found()

    complete = await run_in_slices(collect())
    ordered = sorted(found.values(), key=lambda group: (-group.count, group.letter.cause))
    return Response(
        body={
            "groups": [group.as_json() for group in ordered],
            "scanned": counts["scanned"],
            "other": counts["other"],
            "complete": complete,
            "total": int(queue.ready.count),
        }
    )


async def list_all(call: Call) -> Response:
    """List the queues that dead letters come to, in all virtual hosts."""
    return await _list(call.all_visible())


async def list_in_vhost(call: Call) -> Response:
    """List the queues of a virtual host that dead letters come to."""
    return await _list([call.visible()])


async def _list(hosts: list[Declarations]) -> Response:
    def collect() -> Generator[None, None, list[Json]]:
        found: list[Json] = []
        for topology in hosts:
            sources: dict[Queue, list[str]] = {}
            reached: dict[tuple[bytes, bytes | None], list[Queue]] = {}
            for queue in list(topology.vhost.queues.values()):
                yield
                arguments = queue.arguments
                if queue.name.endswith(SUFFIX):
                    sources.setdefault(queue, [])
                if queue.is_stream or arguments.dead_letter_exchange is None:
                    continue
                to = (arguments.dead_letter_exchange, arguments.dead_letter_routing_key)
                key = to[1] if to[1] is not None or to[0] else queue.name
                targets = reached.get((to[0], key))
                if targets is None:
                    targets = reached[to[0], key] = yield from _targets(topology.vhost, to[0], key)
                for target in targets:
                    listed = sources.setdefault(target, [])
                    if len(listed) < MOST_GROUPS:
                        listed.append(name_text(queue.name))
            for queue, names in sorted(sources.items(), key=lambda each: each[0].name):
                if not queue.deleted and queue.owner is None:
                    total, ready, unacknowledged = count_lengths(queue)
                    found.append(
                        {
                            "name": name_text(queue.name),
                            "vhost": name_text(topology.vhost.name),
                            "type": queue.declared_arguments.type_name,
                            "messages": total,
                            "messages_ready": ready,
                            "messages_unacknowledged": unacknowledged,
                            "from_queues": sorted(names),
                        }
                    )
        return found

    return Response(body=await run_in_slices(collect()))


def _targets(vhost: VirtualHost, name: bytes, key: bytes | None) -> Generator[None, None, list[Queue]]:
    """Return the queues that dead letters may come to.

    :param name: the dead letter exchange.
    :param key: their routing key; None for that of each message, which may be any.
    """
    exchange = vhost.exchanges.get(name)
    if exchange is None:
        return []
    if not name:
        queue = vhost.queues.get(key or b"")
        return [] if queue is None else [queue]
    found: dict[Queue, None] = {}
    seen = {exchange}
    waiting = [exchange]
    while waiting:
        current = waiting.pop()
        for destination in _destinations(current, key):
            yield
            if isinstance(destination, Queue):
                found[destination] = None
            elif destination not in seen:
                seen.add(destination)
                waiting.append(destination)
        alternate = vhost.exchanges.get(current.alternate) if current.alternate is not None else None
        if alternate is not None and alternate not in seen:
            seen.add(alternate)
            waiting.append(alternate)
    return list(found)


def _destinations(exchange: Exchange, key: bytes | None) -> Iterator[Queue | Exchange]:
    if key is None or exchange.selector is not None or exchange.inspects_message:
        bound: Iterable[Queue | Exchange] = [binding.destination for binding in exchange.live_bindings()]
    else:
        bound = exchange.match([key], {})
    yield from dict.fromkeys(bound)
