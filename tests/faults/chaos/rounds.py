"""Rounds of load on a broker, each ended by a fault; in between, the queues are drained and the history is checked."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any, Protocol

from pamqp.commands import Queue

from tests.faults.chaos.checker import HistoryChecker, Tally, check_history, has_missing_messages
from tests.faults.chaos.failures import ChaosFailure
from tests.faults.chaos.history import EventType, History
from tests.faults.chaos.load_clients import (
    DEFINITIONS,
    SMALL,
    Client,
    UnsettledMessages,
    Volume,
    consume,
    declare,
    declare_exchange,
    define,
    delete,
    follow,
    publish,
    read,
    transact,
)
from tests.faults.chaos.load_connection import ConnectionEnded, connect
from tests.faults.chaos.topology import DEFINED, FAN, FANNED, QUEUES, RULES, STREAMS

SHUTDOWN = 320
"""Reply code of connection.close from a broker that stops."""
MARK = "mark"
"""A queue for publishes whose confirms prove that earlier acknowledgements are on disk."""
HISTORY_FILE = "history.jsonl"
DRAIN_SECONDS = 30.0
"""Seconds that confirmed messages may still be missing after all queues were empty."""


class BrokerUnderTest(Protocol):
    """A broker that faults are injected into."""

    volume: Volume
    """Amount of data of the load."""

    @property
    def url(self) -> str:
        """Address of the broker."""

    async def start(self) -> None:
        """Start on the data folder that the last life left."""

    async def until(self) -> None:
        """Return when the load has lasted long enough, or when the fault has happened by itself."""

    async def end(self) -> tuple[EventType, float]:
        """Inject the fault at once; return KILLED or STOPPED, and the time in seconds of `time.monotonic`."""

    def figures(self) -> str:
        """Return what the faults reached, for the report."""

    async def close(self) -> None:
        """Release the broker, whatever its state."""


class Load:
    """The clients of one broker over several of its lives (from a start to a crash or stop)."""

    def __init__(self, broker: BrokerUnderTest, random: Random, min_events: int = 0) -> None:
        """:param min_events: messages that are confirmed, delivered and acknowledged in a round before the fault."""
        self.broker = broker
        self.random = random
        self.min_events = min_events
        self.history = History(RULES)
        self._life = 0
        self._names: dict[str, int] = {}
        self._clients: list[Client] = []

    async def client(self, role: str) -> Client:
        """Return a newly connected client."""
        number = self._names[role] = self._names.get(role, 0) + 1
        connection = await connect(self.broker.url)
        client = Client(
            f"{role}.{self._life}.{number}",
            connection,
            self.history,
            Random(self.random.random()),
            self.broker.volume,
        )
        self._clients.append(client)
        return client

    async def prepare(self) -> None:
        """Declare the exchanges and queues of the load; for existing ones, check that they are as they were declared."""
        client = await self.client("declare")
        await declare_exchange(client, FAN, "fanout")
        await declare_exchange(client, DEFINED, "direct")
        for name, spec in QUEUES.items():
            await declare(client, name, spec.arguments, FAN if spec.fan else "")
        await declare(client, MARK, {"x-max-length": 1}, "")
        await client.close()

    async def round(self) -> None:
        """Run the clients until the broker's fault, then wait for their connections to end."""
        tasks = [asyncio.ensure_future(work) for work in await self._workers()]
        waiting = asyncio.ensure_future(self._until())
        await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        event_type, at = await self.broker.end()
        # The clients still read what the broker had sent before it ended.
        done, late = await asyncio.wait(tasks, timeout=60)
        for task in late:
            task.cancel()
        self.history.note(event_type, at=at)
        self._life += 1
        if late:
            raise ChaosFailure(f"{len(late)} connections did not end with the broker")
        for task in done:
            if not isinstance(error := task.exception(), ConnectionEnded):
                raise ChaosFailure(f"a client failed: {error!r}") from error
        for client in self._clients:
            close = client.connection.closed_with
            if close is not None and close.reply_code != SHUTDOWN:
                raise ChaosFailure(
                    f"the broker closed {client.name} with {close.reply_code} {close.reply_text}"
                )
        self._clients.clear()

    async def _until(self) -> None:
        begun = len(self.history.events)
        counts: Counter[EventType] = Counter()
        while (
            min(counts[kind] for kind in (EventType.CONFIRMED, EventType.DELIVERED, EventType.ACK))
            < self.min_events
        ):
            await asyncio.sleep(0.05)
            counts.update(event.type for event in self.history.events[begun:])
            begun = len(self.history.events)
        await self.broker.until()

    async def _workers(self) -> list[Coroutine[Any, Any, None]]:
        random = self.random
        workers: list[Coroutine[Any, Any, None]] = []
        # Some queues grow, others stay empty; which ones changes from life to life.
        growing = set(random.sample(list(QUEUES), random.randint(0, 6))) | {"hoard", "tx-in"}
        for name, spec in QUEUES.items():
            if spec.rules.ordered and not spec.fan and name not in ("tx-1", "tx-2", "echo"):
                for _ in range(2 if name in ("busy", "tx-in") else 1):
                    levels = 5 if spec.rules.priorities else 0
                    client = await self.client(name)
                    client.sizes = SMALL if name == "hoard" else client.sizes
                    workers.append(publish(client, "", name, (name,), levels=levels))
            if spec.rules.stream:
                workers.append(publish(await self.client(name), "", name, (name,)))
                workers += [
                    follow(await self.client(f"{name}-reader"), name, offset)
                    for offset in ("first", "next", random.randint(0, 1000))
                ]
                continue
            rejects = 0.4 if spec.rules.dead_letters_to else 0.0
            if name not in growing:
                workers += [
                    consume(await self.client(f"{name}-consumer"), name, rejects=rejects)
                    for _ in range(random.randint(1, 2))
                ]
        workers.append(publish(await self.client("fan"), FAN, "", FANNED))
        workers += [transact(await self.client("tx")) for _ in range(2)]
        workers.append(define(await self.client("definitions")))
        return workers

    async def drain(self) -> HistoryChecker:
        """Consume all messages until none is missing, and check the history. The next history starts with empty queues."""
        client = await self.client("drain")
        await client.confirms()
        held = UnsettledMessages(client)
        held.on_more = lambda: self._take(held)
        self.history.note(EventType.DRAIN_STARTED, client.name)
        for name in STREAMS:
            # A reader that has this message has read all.
            client.publish("", name, (name,))
            await client.until_confirmed(0)
            await read(await self.client(f"drain-{name}"), name, "first", whole=True)
        queues = [name for name in QUEUES if name not in STREAMS]
        for name in queues:
            await held.consume(name)
        until = None
        while True:
            await client.pause(0.05)
            if any([await _waiting(client, name) for name in queues]):
                continue
            client.publish("", MARK, ())
            await client.until_confirmed(0)
            # The time begins when the queues are empty for the first time: a slow machine drains them for longer.
            until = until or time.monotonic() + DRAIN_SECONDS
            # Pending dead letters and messages that have not expired yet are still to come.
            if not has_missing_messages(self.history) or time.monotonic() > until:
                break
            await client.pause(0.5)
        self.history.note(EventType.DRAINED, client.name)
        for name in STREAMS:
            await client.connection.call(Queue.Delete(queue=name), Queue.DeleteOk)
        await self._definitions(client)
        await client.close()
        self._clients.clear()
        return check_history(self.history)

    def forget(self) -> None:
        """Begin a new history, after `drain`."""
        self.history = History(RULES)

    @staticmethod
    def _take(held: UnsettledMessages) -> None:
        for tag in list(held.messages):
            held.acknowledge(tag)

    async def _definitions(self, client: Client) -> None:
        """Record which of the declared and deleted queues exist, and delete those."""
        missing = await client.returned(DEFINITIONS)
        for name in DEFINITIONS:
            self.history.note(EventType.MISSING if name in missing else EventType.EXISTS, client.name, name)
            if name not in missing:
                await delete(client, name)


async def run(
    broker: BrokerUnderTest,
    random: Random,
    rounds: int,
    folder: Path,
    *,
    keep: bool = False,
    min_events: int = 0,
    report: Callable[[str], None] = lambda line: None,
) -> Tally:
    """Run rounds of load; after every few of them, drain the queues and check the history.

    :param folder: the folder that a history with a fault is written to.
    :param keep: write the last history there even if it has no fault.
    :param min_events: messages that are confirmed, delivered and acknowledged in a round before the fault, however slow the
        machine is.
    :param report: called with a line of progress.
    :raises ChaosFailure: a guarantee is broken.
    """
    total = Tally()
    load = Load(broker, random, min_events)
    await broker.start()
    try:
        left = rounds
        while left:
            await load.prepare()
            for _ in range(min(left, random.randint(1, 4))):
                await load.round()
                await broker.start()
                await load.prepare()
                left -= 1
            judged = await load.drain()
            total.add(judged.tally)
            if judged.faults:
                raise ChaosFailure("; ".join(str(fault) for fault in judged.faults[:5]))
            report(f"{rounds - left} of {rounds} rounds: {total}")
            if left:
                load.forget()
        if keep:
            load.history.write(folder / HISTORY_FILE)
    except BaseException:
        load.history.write(folder / HISTORY_FILE)
        raise
    finally:
        await broker.close()
    return total


async def _waiting(client: Client, queue: str) -> int:
    found = await client.connection.call(Queue.Declare(queue=queue, passive=True), Queue.DeclareOk)
    return found.message_count or 0
