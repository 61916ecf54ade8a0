"""Two rounds of `make chaos`: nothing is found in what the clients saw, and what is planted in it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.faults.chaos.checker import Kind, check, judge
from tests.faults.chaos.history import Event, History, What, read
from tests.faults.chaos.kill import Process
from tests.faults.chaos.rounds import HISTORY, run
from tests.faults.chaos.topology import QUEUES

Plant = Callable[[History, Random], Kind]


@pytest.fixture(scope="module")
def recorded(starts_processes: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The history of two kills and the emptying after them, in which no fault was found."""
    folder = tmp_path_factory.mktemp("chaos")
    subject = Process(folder / "data", Random(6), longest=1.5, stops=0.0)
    asyncio.run(run(subject, Random(5), 2, folder, keep=True, least=500))
    return folder / HISTORY


@pytest.mark.slow
def test_a_broker_that_is_killed_keeps_its_promises(recorded: Path) -> None:
    judged = judge(read(recorded))
    assert judged.faults == []
    tally = judged.tally
    assert tally.crashes >= 1
    assert min(tally.confirmed, tally.delivered, tally.settled, tally.safe, tally.redelivered) > 100


def original(queue: str) -> bool:
    return QUEUES[queue].rules.ordered


def deliveries(history: History) -> list[int]:
    return [at for at, event in enumerate(history.events) if event.what is What.DELIVERED]


def lose(history: History, random: Random) -> Kind:
    """A confirmed message never comes."""
    confirmed = {event.message for event in history.events if event.what is What.CONFIRMED}
    sent = [event for event in history.events if event.what is What.PUBLISH and event.message in confirmed]
    lost = random.choice([event for event in sent if event.queues])
    queue = random.choice(lost.queues)
    gone = {queue, QUEUES[queue].rules.dead_letters_to}
    kinds = (What.DELIVERED, What.READ, What.ACK, What.REJECT, What.REQUEUE)
    history.events = [
        event
        for event in history.events
        if not (event.what in kinds and event.message == lost.message and event.queue in gone)
    ]
    return Kind.LOST


def resurrect(history: History, random: Random) -> Kind:
    """Something that was acknowledged for good comes again."""
    safe: list[Event] = []
    acks: dict[str, list[Event]] = {}
    published: dict[str, list[Event]] = {}
    end = next(at for at, event in enumerate(history.events) if event.what is What.KILLED)
    for event in history.events[:end]:
        if event.what is What.ACK and not event.transaction:
            acks.setdefault(event.client, []).append(event)
        elif event.what is What.PUBLISH:
            published[event.message] = acks.pop(event.client, [])
        elif event.what is What.CONFIRMED:
            safe += published[event.message]
    back = random.choice([event for event in safe if original(event.queue)])
    at = next(at for at, event in enumerate(history.events) if event.what is What.ALONE)
    history.events.insert(at, replace(back, what=What.DELIVERED, redelivered=True))
    return Kind.RESURRECTED


def reorder(history: History, random: Random) -> Kind:
    """Two of what is delivered for the first time change places."""
    last: dict[tuple[str, str, str], int] = {}
    sent = {event.message: at for at, event in enumerate(history.events) if event.what is What.PUBLISH}
    pairs = []
    for at in deliveries(history):
        event = history.events[at]
        if not original(event.queue) or event.redelivered or QUEUES[event.queue].rules.priorities:
            continue
        key = event.client, event.queue, event.message.rpartition(":")[0]
        # Of two that could have come in this order: both had been sent.
        if key in last and sent[event.message] < last[key]:
            pairs.append((last[key], at))
        last[key] = at
    first, second = random.choice(pairs)
    events = history.events
    events[first], events[second] = (
        replace(events[first], message=events[second].message),
        replace(events[second], message=events[first].message),
    )
    return Kind.DISORDER


def forget_the_mark(history: History, random: Random) -> Kind:
    marked = [
        at
        for at in deliveries(history)
        if history.events[at].redelivered and original(history.events[at].queue)
    ]
    at = random.choice(marked)
    history.events[at] = replace(history.events[at], redelivered=False)
    return Kind.UNFLAGGED


def halve_a_transaction(history: History, random: Random) -> Kind:
    """A commit has no answer, and of two messages that were there afterwards one is not."""
    events = history.events
    end = next(at for at, event in enumerate(events) if event.what is What.KILLED)
    first = {events[at].message: at for at in reversed(deliveries(history))}
    groups: dict[str, list[str]] = {}
    for event in events[:end]:
        if event.what is What.PUBLISH and event.transaction:
            groups.setdefault(event.transaction, []).append(event.message)
    committed = {event.transaction for event in events[:end] if event.what is What.COMMITTED}
    halved, messages = random.choice(
        [
            (name, found)
            for name, messages in groups.items()
            if name in committed and len(found := [one for one in messages if first[one] > end]) > 1
        ]
    )
    gone = random.choice(messages)
    seen = (What.DELIVERED, What.ACK)
    history.events = [
        event
        for event in events
        if not (event.what is What.COMMITTED and event.transaction == halved)
        and not (event.what in seen and event.message == gone)
    ]
    return Kind.TRANSACTION


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("plant", [lose, resurrect, reorder, forget_the_mark, halve_a_transaction])
def test_what_is_planted_in_it_is_found(recorded: Path, plant: Plant, seed: int) -> None:
    history = read(recorded)
    kind = plant(history, Random(seed))
    assert kind in {fault.kind for fault in check(history)}
