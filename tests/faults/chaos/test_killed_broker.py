"""Two rounds of `make chaos`: the history has no fault, and the checker finds faults that are planted in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.faults.chaos.checker import FaultKind, check_history, find_faults
from tests.faults.chaos.history import Event, EventType, History, read
from tests.faults.chaos.killed_broker import KilledBroker
from tests.faults.chaos.rounds import HISTORY_FILE, run
from tests.faults.chaos.topology import QUEUES

Plant = Callable[[History, Random], FaultKind]


@pytest.fixture(scope="module")
def recorded(starts_processes: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record the history of two kills and the final drain, without faults."""
    for seed in range(20):
        folder = tmp_path_factory.mktemp("chaos")
        broker = KilledBroker(folder / "data", Random(6 + seed), longest=1.5, stops=0.0)
        asyncio.run(run(broker, Random(5 + seed), 2, folder, keep=True, min_events=500))
        # On a busy machine, little may have happened before a kill.
        if divisible_transactions(read(folder / HISTORY_FILE).events):
            break
    return folder / HISTORY_FILE


@pytest.mark.slow
def test_a_killed_broker_keeps_its_guarantees(recorded: Path) -> None:
    judged = check_history(read(recorded))
    assert judged.faults == []
    tally = judged.tally
    assert tally.crashes >= 1
    assert min(tally.confirmed, tally.delivered, tally.settled, tally.durable, tally.redelivered) > 100


def original(queue: str) -> bool:
    return QUEUES[queue].rules.ordered


def deliveries(history: History) -> list[int]:
    return [at for at, event in enumerate(history.events) if event.type is EventType.DELIVERED]


def lose(history: History, random: Random) -> FaultKind:
    """Remove all deliveries of a confirmed message."""
    confirmed = {event.message for event in history.events if event.type is EventType.CONFIRMED}
    sent = [
        event for event in history.events if event.type is EventType.PUBLISH and event.message in confirmed
    ]
    lost = random.choice([event for event in sent if event.queues])
    queue = random.choice(lost.queues)
    gone = {queue, QUEUES[queue].rules.dead_letters_to}
    kinds = (EventType.DELIVERED, EventType.READ, EventType.ACK, EventType.REJECT, EventType.REQUEUE)
    history.events = [
        event
        for event in history.events
        if not (event.type in kinds and event.message == lost.message and event.queue in gone)
    ]
    return FaultKind.LOST


def resurrect(history: History, random: Random) -> FaultKind:
    """Deliver a message again whose acknowledgement is on disk."""
    safe: list[Event] = []
    acks: dict[str, list[Event]] = {}
    published: dict[str, list[Event]] = {}
    end = next(at for at, event in enumerate(history.events) if event.type is EventType.KILLED)
    for event in history.events[:end]:
        if event.type is EventType.ACK and not event.transaction:
            acks.setdefault(event.client, []).append(event)
        elif event.type is EventType.PUBLISH:
            published[event.message] = acks.pop(event.client, [])
        elif event.type is EventType.CONFIRMED:
            safe += published[event.message]
    back = random.choice([event for event in safe if original(event.queue)])
    at = next(at for at, event in enumerate(history.events) if event.type is EventType.DRAIN_STARTED)
    history.events.insert(at, replace(back, type=EventType.DELIVERED, redelivered=True))
    return FaultKind.RESURRECTED


def reorder(history: History, random: Random) -> FaultKind:
    """Swap two first deliveries of one publisher."""
    last: dict[tuple[str, str, str], int] = {}
    sent = {event.message: at for at, event in enumerate(history.events) if event.type is EventType.PUBLISH}
    pairs = []
    for at in deliveries(history):
        event = history.events[at]
        if not original(event.queue) or event.redelivered or QUEUES[event.queue].rules.priorities:
            continue
        key = event.client, event.queue, event.message.rpartition(":")[0]
        # Both had been sent, so either order of delivery is possible.
        if key in last and sent[event.message] < last[key]:
            pairs.append((last[key], at))
        last[key] = at
    first, second = random.choice(pairs)
    events = history.events
    events[first], events[second] = (
        replace(events[first], message=events[second].message),
        replace(events[second], message=events[first].message),
    )
    return FaultKind.OUT_OF_ORDER


def clear_redelivered_flag(history: History, random: Random) -> FaultKind:
    """Clear the redelivered flag of a delivery."""
    marked = [
        at
        for at in deliveries(history)
        if history.events[at].redelivered and original(history.events[at].queue)
    ]
    at = random.choice(marked)
    history.events[at] = replace(history.events[at], redelivered=False)
    return FaultKind.NOT_FLAGGED


def divisible_transactions(events: list[Event]) -> list[tuple[str, list[str]]]:
    """Return the committed transactions of which several messages were delivered only after a kill, with these."""
    first = {
        event.message: at for at, event in reversed([*enumerate(events)]) if event.type is EventType.DELIVERED
    }
    found: dict[str, list[str]] = {}
    open_groups: dict[str, list[str]] = {}
    committed: dict[str, list[str]] = {}
    for at, event in enumerate(events):
        if event.type is EventType.PUBLISH and event.transaction:
            open_groups.setdefault(event.transaction, []).append(event.message)
        elif event.type is EventType.COMMITTED:
            committed[event.transaction] = open_groups.get(event.transaction, [])
        elif event.type is EventType.KILLED:
            for name, messages in committed.items():
                later = [message for message in messages if first.get(message, 0) > at]
                if len(later) > 1:
                    found[name] = later
    return list(found.items())


def halve_a_transaction(history: History, random: Random) -> FaultKind:
    """Remove the reply to a commit, and the deliveries of one of its messages."""
    halved, messages = random.choice(divisible_transactions(history.events))
    gone = random.choice(messages)
    seen = (EventType.DELIVERED, EventType.ACK)
    history.events = [
        event
        for event in history.events
        if not (event.type is EventType.COMMITTED and event.transaction == halved)
        and not (event.type in seen and event.message == gone)
    ]
    return FaultKind.PARTIAL_TRANSACTION


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("plant", [lose, resurrect, reorder, clear_redelivered_flag, halve_a_transaction])
def test_a_planted_fault_is_found(recorded: Path, plant: Plant, seed: int) -> None:
    history = read(recorded)
    kind = plant(history, Random(seed))
    assert kind in {fault.kind for fault in find_faults(history)}
