"""Which measure helps a queue whose backlog grows or stays: the rules, each with its reason.

They are written for people in docs/pipeline/flow.md. A number that nobody knows is None, and a rule that needs it does not
apply.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal[
    "nothing",
    "consume",
    "handle_what_fails",
    "raise_prefetch",
    "acknowledge_in_multiples",
    "add_consumers",
    "slow_the_publishers",
]

ACCEPTABLE_WAIT = 1.0
"""Seconds of work: a smaller backlog that does not grow is none."""
HIGH_REDELIVERY_SHARE = 0.2
"""From this share of redeliveries on, the capacity goes into work that is done again."""
HIGH_IDLE_SHARE = 0.1
"""From this share of their time on that consumers hold nothing, although messages wait, they wait for the broker."""
LARGE_PREFETCH = 1000
"""A window that is larger does not help: what is missing then is not messages on their way."""
SMALL_PREFETCH, USUAL_PREFETCH = 20, 100
"""A window that is smaller, and always full as the broker sees it, may be spent on the way: RabbitMQ advises 100 to 300
("Consumer Acknowledgements and Publisher Confirms")."""
FULL_SHARE = 0.9
"""From this share of its time on a window is full always."""
BUSY_SHARE = 0.5
"""From this part of their windows on, consumers have all they can hold, and handling is what takes the time."""
CHEAP_HANDLING = 0.0005
"""Seconds: where handling a message takes less, acknowledging each by itself is a good part of it."""
MULTIPLE_ACK = 1.5
"""Messages that one acknowledgement settles, on average; fewer are single ones."""
MANY_CONSUMERS = 2.0
"""Where more than so many times the consumers are needed, it takes long to add them."""
SOON_FULL = 600.0
"""Seconds: a queue that fills sooner cannot wait for consumers."""


@dataclass(frozen=True)
class Measure:
    """What to do, and why."""

    kind: Kind
    words: str


@dataclass(frozen=True)
class Load:
    """What is known of a queue; rates are a second, over the time that was looked at."""

    ready: float
    """Messages that wait now."""
    growth: tuple[float, float, float] | None
    """Of `ready`, a second: the slope, and the ends of its 95 % interval."""
    arriving: float
    """Messages into the queue."""
    leaving: float
    """Messages that consumers settled for good."""
    redelivered: float
    """Share of the deliveries."""
    consumers: int
    prefetch: int | None = None
    """Of one consumer; 0 is no limit."""
    window_used: float | None = None
    """Messages that a consumer holds on average, of its prefetch."""
    full: float | None = None
    """Share of its time with a full window."""
    idle: float | None = None
    """Share of its time that a consumer holds nothing, as it sees it itself; a broker cannot see it wait for what is on its
    way."""
    handling: float | None = None
    """Seconds of a consumer's time for a message, while it holds one."""
    acknowledged_together: float | None = None
    """Messages that one acknowledgement settles."""
    fills_in: float | None = None
    """Seconds until it reaches its limit."""


def measures(load: Load) -> tuple[Measure, ...]:
    """What helps, the most urgent first; one that says so if nothing is needed."""
    slope, low, high = load.growth or (0.0, 0.0, 0.0)
    grows = low > 0
    wait_seconds = load.ready / load.leaving if load.leaving else math.inf if load.ready else 0.0
    if not grows and wait_seconds <= ACCEPTABLE_WAIT:
        return (Measure("nothing", "The consumers keep up."),)
    if not grows and high < 0:
        left = f" It is gone in about {load.ready / -slope:,.0f} s." if slope < 0 else ""
        return (Measure("nothing", f"The backlog shrinks by {-slope:,.1f} messages a second.{left}"),)
    return tuple(needed_measures(load, grows))


def needed_measures(load: Load, grows: bool) -> Iterator[Measure]:
    """What helps where messages wait and do not get fewer."""
    if grows and load.fills_in is not None and load.fills_in < SOON_FULL:
        yield slow_publishers(
            load, f"It is full in {load.fills_in:,.0f} s" if load.fills_in else "It is full"
        )
    if not load.consumers:
        yield Measure("consume", "Nobody consumes it: start a consumer.")
        return
    if load.redelivered >= HIGH_REDELIVERY_SHARE:
        yield Measure(
            "handle_what_fails",
            f"{load.redelivered:.0%} of the deliveries are redeliveries: handle, delay or dead-letter what fails, "
            "before more of it is delivered.",
        )
    starved = load.idle is not None and load.idle >= HIGH_IDLE_SHARE
    if starved and load.prefetch and load.prefetch < LARGE_PREFETCH:
        assert load.idle is not None
        yield Measure(
            "raise_prefetch",
            f"Consumers hold nothing for {load.idle:.0%} of their time although messages wait: their window of "
            f"{load.prefetch:,} is handled before the next one arrives. Raise the prefetch to "
            f"{required_prefetch(load):,} or more.",
        )
        return
    if starved:
        yield Measure(
            "add_consumers",
            "Consumers hold nothing for a part of their time although messages wait and no window is in the way: the "
            "connection or the broker is the limit. Consume on more connections.",
        )
        return
    if load.idle is None and (load.full or 0) >= FULL_SHARE and 0 < (load.prefetch or 0) < SMALL_PREFETCH:
        yield Measure(
            "raise_prefetch",
            f"The window of {load.prefetch:,} is always full, and only the broker tells of it, which cannot see a consumer "
            f"wait for the next message. Raise the prefetch to {USUAL_PREFETCH:,} first: it costs little.",
        )
    if load.handling is not None and load.handling < CHEAP_HANDLING and acknowledges_singly(load):
        yield Measure(
            "acknowledge_in_multiples",
            f"A message takes {load.handling * 1e6:,.0f} µs of a consumer's time, and each is acknowledged by itself: "
            "acknowledge in multiples.",
        )
    wanted = required_consumers(load)
    full = load.window_used is None or load.window_used >= BUSY_SHARE
    why = (
        "The consumers are busy"
        if full
        else "The consumers are busy one message at a time, far below their windows"
    )
    yield Measure(
        "add_consumers",
        f"{why}: {load.leaving:,.1f} of {load.arriving:,.1f} messages a second are handled. "
        f"{wanted:,} consumers like these {'would keep up' if wanted > load.consumers else 'are needed'} "
        f"(now {load.consumers:,}), or let each handle several at once.",
    )
    if (
        grows
        and wanted > MANY_CONSUMERS * load.consumers
        and (load.fills_in is None or load.fills_in >= SOON_FULL)
    ):
        yield slow_publishers(load, "More than twice the consumers are needed")


def slow_publishers(load: Load, why: str) -> Measure:
    return Measure(
        "slow_the_publishers",
        f"{why}: publish at most {load.leaving:,.1f} a second (now {load.arriving:,.1f}), or let the queue refuse "
        "(x-overflow reject-publish), until more is consumed.",
    )


def required_consumers(load: Load) -> int:
    """So many of the same kind handle what arrives, and at least one more than now where a backlog stays."""
    if not load.consumers or not load.leaving:
        return load.consumers + 1
    return max(math.ceil(load.consumers * load.arriving / load.leaving), load.consumers + 1)


def required_prefetch(load: Load) -> int:
    """The prefetch with which the window lasts while the next messages are on their way.

    With prefetch P a consumer works off P messages and then waits for the next for the share `idle` of its time. The way
    takes idle / (1 - idle) times as long as the work, so the window must hold that much more; and at least twice as
    much as now, so that one step shows.
    """
    assert load.idle is not None
    assert load.prefetch
    return max(2 * load.prefetch, math.ceil(load.prefetch / max(1 - load.idle, 0.01)))


def acknowledges_singly(load: Load) -> bool:
    return load.acknowledged_together is not None and load.acknowledged_together < MULTIPLE_ACK
