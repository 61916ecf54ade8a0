"""Advice for a queue whose backlog grows or persists: rules that recommend measures, each with its reason.

docs/pipeline/flow.md describes the rules for users. An unknown number is None, and a rule that needs it does not apply.
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
"""Largest backlog, in seconds that the consumers take to handle it, for which no measure is recommended as long as
it does not grow."""
HIGH_REDELIVERY_SHARE = 0.2
"""Threshold for the share of redeliveries among all deliveries. From this share on the advice is to handle the failing
messages, because redeliveries take much of the consumers' time."""
HIGH_IDLE_SHARE = 0.1
"""Threshold for the share of their time in which consumers have no message although the queue has ready messages. From
this share on a larger prefetch or more connections are recommended."""
LARGE_PREFETCH = 1000
"""Prefetch from which on a larger one is not recommended: with so many messages delivered ahead, a consumer that is
idle does not wait for messages in transit, but the connection or the broker is too slow."""
SMALL_PREFETCH, USUAL_PREFETCH = 20, 100
"""Prefetch below which a larger one is recommended if the broker always sees it used up, and the recommended value.
With a small prefetch all unacknowledged messages may be in transit, while the consumer has none. RabbitMQ advises 100
to 300 ("Consumer Acknowledgements and Publisher Confirms")."""
FULL_SHARE = 0.9
"""Threshold for the share of the consumers' time in which they have as many unacknowledged messages as their prefetch
allows. From this share on the prefetch counts as always used up."""
BUSY_SHARE = 0.5
"""Threshold for the average number of unacknowledged messages, as a share of the prefetch. From this share on the text
of the advice calls the consumers busy; below it, busy with one message at a time."""
CHEAP_HANDLING = 0.0005
"""Seconds of handling per message below which the advice is to acknowledge several messages at once, because
acknowledging each on its own is a large part of the cost."""
MULTIPLE_ACK = 1.5
"""Average number of messages per `basic.ack` below which consumers count as acknowledging each message on its own."""
MANY_CONSUMERS = 2.0
"""Threshold for the ratio of the required to the present number of consumers. Above it, slowing the publishers down is
recommended as well, because adding so many consumers takes long."""
SOON_FULL = 600.0
"""Threshold for the seconds until the queue is full. Below it, slowing the publishers down is the first recommendation,
because new consumers would come too late."""


@dataclass(frozen=True)
class Measure:
    """Recommended measure against a backlog: its kind, and a text for the user with the reason (`words`)."""

    kind: Kind
    words: str


@dataclass(frozen=True)
class Load:
    """Known facts about a queue and its consumers, from which each `Measure` is chosen. Rates are messages per second."""

    ready: float
    """Ready messages at the end of the observed time."""
    growth: tuple[float, float, float] | None
    """Growth of `ready` in messages per second: the slope, and the lower and upper end of its 95 % confidence interval;
    None if it is unknown."""
    arriving: float
    """Rate of messages into the queue."""
    leaving: float
    """Rate of messages that consumers acknowledged, rejected, or received with automatic acknowledgement."""
    redelivered: float
    """Share of redeliveries among the deliveries."""
    consumers: int
    prefetch: int | None = None
    """Prefetch of one consumer; 0 is no limit."""
    window_used: float | None = None
    """Average number of unacknowledged messages of a consumer, as a share of its prefetch; None without a prefetch
    limit, or if it is unknown."""
    full: float | None = None
    """Share of the consumers' time in which their unacknowledged messages used up the prefetch."""
    idle: float | None = None
    """Share of the consumers' time without a message, as seen by their own processes; None if only the broker captured
    events, because a broker cannot see which messages are still in transit."""
    handling: float | None = None
    """Seconds that a consumer takes for a message, not counting its time without messages."""
    acknowledged_together: float | None = None
    """Average number of messages per acknowledgement (`basic.ack`)."""
    fills_in: float | None = None
    """Seconds until the queue reaches its maximum length, if it grows as before; None if that is unknown."""


def measures(load: Load) -> tuple[Measure, ...]:
    """Return the recommended measures for a queue, the most urgent first; a single one of kind `nothing` if none is
    needed.
    """
    slope, low, high = load.growth or (0.0, 0.0, 0.0)
    grows = low > 0
    wait_seconds = load.ready / load.leaving if load.leaving else math.inf if load.ready else 0.0
    if not grows and wait_seconds <= ACCEPTABLE_WAIT:
        return (Measure("nothing", "The consumers keep up."),)
    if not grows and high < 0:
        left = f" It will be gone in about {load.ready / -slope:,.0f} s." if slope < 0 else ""
        return (Measure("nothing", f"The backlog shrinks by {-slope:,.1f} messages per second.{left}"),)
    return tuple(needed_measures(load, grows))


def needed_measures(load: Load, grows: bool) -> Iterator[Measure]:
    """Yield the recommended measures, the most urgent first, for a queue whose backlog grows, or is large and does not
    shrink significantly.

    :param grows: whether the backlog grows significantly: its 95 % confidence interval is above 0
    """
    if grows and load.fills_in is not None and load.fills_in < SOON_FULL:
        yield slow_publishers(
            load, f"The queue is full in {load.fills_in:,.0f} s" if load.fills_in else "The queue is full"
        )
    if not load.consumers:
        yield Measure("consume", "The queue has no consumer: start one.")
        return
    if load.redelivered >= HIGH_REDELIVERY_SHARE:
        yield Measure(
            "handle_what_fails",
            f"{load.redelivered:.0%} of the deliveries are redeliveries: handle, delay or dead-letter the failing messages "
            "before more of them are delivered.",
        )
    starved = load.idle is not None and load.idle >= HIGH_IDLE_SHARE
    if starved and load.prefetch and load.prefetch < LARGE_PREFETCH:
        assert load.idle is not None
        yield Measure(
            "raise_prefetch",
            f"Consumers are idle for {load.idle:.0%} of their time although messages are ready: their window of "
            f"{load.prefetch:,} messages is handled before the next ones arrive. Raise the prefetch to "
            f"{required_prefetch(load):,} or more.",
        )
        return
    if starved:
        yield Measure(
            "add_consumers",
            "Consumers are idle for part of their time although messages are ready and no prefetch limits them: the "
            "connection or the broker is the limit. Consume on more connections.",
        )
        return
    if load.idle is None and (load.full or 0) >= FULL_SHARE and 0 < (load.prefetch or 0) < SMALL_PREFETCH:
        yield Measure(
            "raise_prefetch",
            f"The window of {load.prefetch:,} is always full. Only the broker reports it, which cannot see a consumer "
            f"wait for messages in transit. Raise the prefetch to {USUAL_PREFETCH:,} first: it costs little.",
        )
    if load.handling is not None and load.handling < CHEAP_HANDLING and acknowledges_singly(load):
        yield Measure(
            "acknowledge_in_multiples",
            f"A message takes {load.handling * 1e6:,.0f} µs of a consumer's time, and each is acknowledged singly: "
            "acknowledge several messages at once (multiple=true).",
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
        f"{why}: {load.leaving:,.1f} of {load.arriving:,.1f} messages per second are handled. "
        f"{wanted:,} consumers like these {'would keep up' if wanted > load.consumers else 'are needed'} "
        f"(now {load.consumers:,}), or let each handle several messages concurrently.",
    )
    if (
        grows
        and wanted > MANY_CONSUMERS * load.consumers
        and (load.fills_in is None or load.fills_in >= SOON_FULL)
    ):
        yield slow_publishers(load, "More than twice as many consumers are needed")


def slow_publishers(load: Load, why: str) -> Measure:
    """Return the recommendation to slow down the publishers.

    :param why: reason, with which the sentence begins
    """
    return Measure(
        "slow_the_publishers",
        f"{why}: publish at most {load.leaving:,.1f} messages per second (now {load.arriving:,.1f}), or let the queue "
        "refuse messages (x-overflow reject-publish), until more are consumed.",
    )


def required_consumers(load: Load) -> int:
    """Return the number of consumers, of the same speed, that could handle all arriving messages; at least one more
    than now.
    """
    if not load.consumers or not load.leaving:
        return load.consumers + 1
    return max(math.ceil(load.consumers * load.arriving / load.leaving), load.consumers + 1)


def required_prefetch(load: Load) -> int:
    """Return a prefetch with which a consumer does not run out of messages while the next ones are in transit.

    With prefetch P a consumer handles P messages and then waits for the share `idle` of its time. The transit takes
    idle / (1 - idle) times as long as the handling, so the prefetch must be larger by the factor 1 / (1 - idle). The
    result is at least twice the present prefetch, so that a user who follows the advice sees an effect.
    """
    assert load.idle is not None
    assert load.prefetch
    return max(2 * load.prefetch, math.ceil(load.prefetch / max(1 - load.idle, 0.01)))


def acknowledges_singly(load: Load) -> bool:
    """Return whether consumers acknowledge each message on its own (without `multiple`)."""
    return load.acknowledged_together is not None and load.acknowledged_together < MULTIPLE_ACK
