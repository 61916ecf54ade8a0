"""Rounds of load, each ended by something bad, until the queues are emptied and the history is judged."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any, Protocol

from pamqp.commands import Queue

from tests.faults.chaos.checker import Judge, Tally, judge, owed
from tests.faults.chaos.clients import (
    DEFINITIONS,
    Client,
    Held,
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
from tests.faults.chaos.history import History, What
from tests.faults.chaos.talk import Lost, connect
from tests.faults.chaos.topology import DEFINED, FAN, FANNED, QUEUES, RULES, STREAMS

SHUTDOWN = 320
"""The reply code with which a broker that is stopped closes its connections."""
MARK = "mark"
"""A queue for messages of no interest, whose confirms say that what was acknowledged before them is on the disk."""
HISTORY = "history.jsonl"
EMPTY_SECONDS = 30.0
"""How long the queues may take to give all out that they owe."""


class Subject(Protocol):
    """A broker that comes to harm."""

    @property
    def url(self) -> str: ...

    async def start(self) -> None:
        """Start on what its last life left on the disk."""

    async def until(self) -> None:
        """Return when the load has lasted long enough, or when it has come to harm by itself."""

    async def end(self) -> tuple[What, float]:
        """Do to it what this is about, at once: KILLED or STOPPED, and when it was, in seconds of `time.monotonic`."""

    async def close(self) -> None:
        """Let go of it, whatever state it is in."""


class Broken(AssertionError):
    """The broker did what no history can tell: it refused a client, or gave no answer."""


class Load:
    """Clients of one broker over several of its lives."""

    def __init__(self, subject: Subject, random: Random, least: int = 0) -> None:
        """:param least: so much is published, delivered and acknowledged in a round before the subject comes to harm"""
        self.subject = subject
        self.random = random
        self.least = least
        self.history = History(RULES)
        self._life = 0
        self._names: dict[str, int] = {}
        self._clients: list[Client] = []

    async def client(self, role: str) -> Client:
        number = self._names[role] = self._names.get(role, 0) + 1
        talk = await connect(self.subject.url)
        client = Client(f"{role}.{self._life}.{number}", talk, self.history, Random(self.random.random()))
        self._clients.append(client)
        return client

    async def prepare(self) -> None:
        """Declare what the load needs; where it exists, this proves that it does as it was declared."""
        client = await self.client("declares")
        await declare_exchange(client, FAN, "fanout")
        await declare_exchange(client, DEFINED, "direct")
        for name, spec in QUEUES.items():
            await declare(client, name, spec.arguments, FAN if spec.fan else "")
        await declare(client, MARK, {"x-max-length": 1}, "")
        await client.close()

    async def round(self) -> None:
        """Load until the subject says so; then it is ended."""
        tasks = [asyncio.ensure_future(work) for work in await self._workers()]
        waiting = asyncio.ensure_future(self._until())
        await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        what, at = await self.subject.end()
        # What the broker had written before it ended is still read.
        done, late = await asyncio.wait(tasks, timeout=60)
        for task in late:
            task.cancel()
        self.history.note(what, at=at)
        self._life += 1
        if late:
            raise Broken(f"{len(late)} connections did not end with the broker")
        for task in done:
            if not isinstance(error := task.exception(), Lost):
                raise Broken(f"a client failed: {error!r}") from error
        for client in self._clients:
            said = client.talk.closed_with
            if said is not None and said.reply_code != SHUTDOWN:
                raise Broken(f"{client.name} was refused: {said.reply_code} {said.reply_text}")
        self._clients.clear()

    async def _until(self) -> None:
        begun = len(self.history.events)
        told: Counter[What] = Counter()
        while min(told[what] for what in (What.CONFIRMED, What.DELIVERED, What.ACK)) < self.least:
            await asyncio.sleep(0.05)
            told.update(event.what for event in self.history.events[begun:])
            begun = len(self.history.events)
        await self.subject.until()

    async def _workers(self) -> list[Coroutine[Any, Any, None]]:
        random = self.random
        workers: list[Coroutine[Any, Any, None]] = []
        for name, spec in QUEUES.items():
            if spec.rules.ordered and not spec.fan and name not in ("tx-1", "tx-2", "echo"):
                for _ in range(2 if name in ("busy", "tx-in") else 1):
                    levels = 5 if spec.rules.priorities else 0
                    workers.append(publish(await self.client(name), "", name, (name,), levels=levels))
            if spec.rules.stream:
                workers.append(publish(await self.client(name), "", name, (name,)))
                workers += [
                    follow(await self.client(f"{name}-reader"), name, offset)
                    for offset in ("first", "next", random.randint(0, 1000))
                ]
                continue
            rejects = 0.4 if spec.rules.dead_letters_to else 0.0
            # Some queues grow, some are kept empty, and which ones changes from life to life.
            if name != "tx-in":
                workers += [
                    consume(await self.client(f"{name}-consumer"), name, rejects=rejects)
                    for _ in range(random.randint(0, 2))
                ]
        workers.append(publish(await self.client("fan"), FAN, "", FANNED))
        workers += [transact(await self.client("tx")) for _ in range(2)]
        workers.append(define(await self.client("defines")))
        return workers

    async def empty(self) -> Judge:
        """Take all that is there, until nothing is owed, and judge the history. The next one starts with empty queues."""
        client = await self.client("empties")
        await client.confirms()
        held = Held(client)
        held.on_more = lambda: self._take(held)
        self.history.note(What.ALONE, client.name)
        for name in STREAMS:
            # When the last one has been read, all have.
            client.publish("", name, (name,))
            await client.until_confirmed(0)
            await read(await self.client(f"empties-{name}"), name, "first", whole=True)
        queues = [name for name in QUEUES if name not in STREAMS]
        for name in queues:
            await held.consume(name)
        until = time.monotonic() + EMPTY_SECONDS
        while True:
            await client.pause(0.05)
            if any([await _waiting(client, name) for name in queues]):
                continue
            client.publish("", MARK, ())
            await client.until_confirmed(0)
            # What was kept aside, or has not expired yet, is still to come.
            if not owed(self.history) or time.monotonic() > until:
                break
            await client.pause(0.5)
        self.history.note(What.EMPTIED, client.name)
        for name in STREAMS:
            await client.talk.call(Queue.Delete(queue=name), Queue.DeleteOk)
        await self._definitions(client)
        await client.close()
        self._clients.clear()
        return judge(self.history)

    def forget(self) -> None:
        """Begin a new history, after `empty`."""
        self.history = History(RULES)

    @staticmethod
    def _take(held: Held) -> None:
        for tag in list(held.messages):
            held.acknowledge(tag)

    async def _definitions(self, client: Client) -> None:
        """Look which of the queues that came and went are there, and delete those."""
        missing = await client.returned(DEFINITIONS)
        for name in DEFINITIONS:
            self.history.note(What.MISSING if name in missing else What.EXISTS, client.name, name)
            if name not in missing:
                await delete(client, name)


async def run(
    subject: Subject,
    random: Random,
    rounds: int,
    folder: Path,
    *,
    keep: bool = False,
    least: int = 0,
    say: Callable[[str], None] = lambda line: None,
) -> Tally:
    """So many rounds, after each few of which the queues are emptied and the history is judged.

    :param folder: where the history goes that shows a fault
    :param keep: write the last history there also if there is no fault in it
    :param least: so much comes of a round's load before the harm, on a machine however slow
    :raises Broken: at the first fault.
    """
    total = Tally()
    load = Load(subject, random, least)
    await subject.start()
    try:
        left = rounds
        while left:
            await load.prepare()
            for _ in range(min(left, random.randint(1, 4))):
                await load.round()
                await subject.start()
                await load.prepare()
                left -= 1
            verdict = await load.empty()
            total.add(verdict.tally)
            if verdict.faults:
                raise Broken("; ".join(str(fault) for fault in verdict.faults[:5]))
            say(f"{rounds - left} of {rounds} rounds: {total}")
            if left:
                load.forget()
        if keep:
            load.history.write(folder / HISTORY)
    except BaseException:
        load.history.write(folder / HISTORY)
        raise
    finally:
        await subject.close()
    return total


async def _waiting(client: Client, queue: str) -> int:
    found = await client.talk.call(Queue.Declare(queue=queue, passive=True), Queue.DeclareOk)
    return found.message_count or 0
