"""Result types of the job `dead-letters`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any


@dataclass(frozen=True)
class BurstRule:
    """Definition of a burst: at least `least` deaths (dead-letterings) for one reason, each at most `gap` after the one
    before.
    """

    gap: timedelta = timedelta(seconds=10)
    least: int = 10
    of: str = "queue"
    """Deaths (dead-letterings) that can form a burst together: `queue` for those of one reason in one queue, `reason`
    for those of one reason in any queue."""


@dataclass(frozen=True)
class Place:
    """Pair of queue and reason (such as `expired`) for which messages were dead-lettered, with the numbers and times of
    these deaths.
    """

    queue: str
    reason: str
    deaths: int
    messages: int
    """Number of distinct messages; each dead letter without a message id counts as one."""
    first: str | None
    last: str | None
    median_after: float | None
    """Median delay from publishing to death (dead-lettering) in seconds; None if it is unknown."""
    p90_after: float | None


@dataclass(frozen=True)
class Group:
    """Number of deaths (dead-letterings) of messages that have the same values (`words`) in some columns, such as
    exchange and routing key.

    A value is None if the message has none.
    """

    words: tuple[str | None, ...]
    deaths: int


@dataclass(frozen=True)
class Bucket:
    """Bucket of a histogram: the number of values over `above` and at most `up_to`; None is unbounded."""

    above: float | None
    up_to: float | None
    count: int


@dataclass(frozen=True)
class DeathDelay:
    """Distribution of the delay from publishing to death (dead-lettering) in seconds, over the deaths for which both
    times are known.
    """

    known: int
    by_source: dict[str, int]
    """Number of deaths (dead-letterings) by the source of the message's time of publishing, a key of
    `facts.PUBLISHED_FROM`."""
    within_a_second: int
    """Number of delays that are precise to a second; the others are precise to a millisecond."""
    least_only: int
    """Number of deaths (dead-letterings) of messages whose time of publishing is unknown, so that the time since an
    earlier death is only a lower bound of the delay. They are not part of `known` and of the distribution."""
    unknown: int
    before_publish: int
    """Number of deaths (dead-letterings) dated before publishing, because two clocks disagree. They are part of
    `known`."""
    minimum: float | None
    maximum: float | None
    mean: float | None
    quantiles: dict[str, float]
    """Quantiles in seconds; the keys are levels such as "0.50". Interpolated linearly between neighbours."""
    histogram: tuple[Bucket, ...]


@dataclass(frozen=True)
class Burst:
    """Burst: many deaths (dead-letterings) for one reason at short intervals, as defined by `BurstRule`."""

    queue: str | None
    """Queue of the deaths (dead-letterings); None if those in any queue were counted together."""
    reason: str
    began: str
    ended: str
    seconds: float
    deaths: int
    type: str | None
    """Most frequent message type (property `type`) in the burst."""


@dataclass(frozen=True)
class TimelineStep:
    """Numbers of deaths (dead-letterings) by reason in one step of the chart over time, which begins at `at`."""

    at: str
    deaths: dict[str, int]


@dataclass(frozen=True)
class Summary:
    """Numbers of dead letters by queue and reason, number of deaths (times that a message was dead-lettered), delay,
    time and burst.
    """

    letters: int
    repeated: int
    """Number of dead letters that are left out because another one reports the same death (dead-lettering)."""
    unexplained: int
    """Number of messages that were read and have no headers about a dead-lettering."""
    deaths: int
    messages: int
    first: str | None
    last: str | None
    by_reason: dict[str, int]
    places: tuple[Place, ...]
    more_places: int
    """Number of pairs of queue and reason for which messages were dead-lettered, beyond those in `places`."""
    origins: tuple[Group, ...]
    """Deaths (dead-letterings) by the exchange and routing key to which the messages were originally published."""
    types: tuple[Group, ...]
    errors: tuple[Group, ...]
    """Deaths (dead-letterings) by type of exception, for those where the SDK recorded one."""
    times: tuple[Bucket, ...]
    """Histogram: number of messages by how often they were dead-lettered."""
    after: DeathDelay
    step_seconds: int
    timeline: tuple[TimelineStep, ...]
    """Deaths (dead-letterings) over time; time steps without deaths are left out."""
    undated: int
    """Number of deaths (dead-letterings) whose time is not in the message's headers."""
    burst_gap_seconds: float
    burst_least: int
    burst_of: str
    bursts: int
    deaths_in_bursts: int
    deaths_beside_bursts: int
    """Number of deaths (dead-letterings) that belong to no burst, among those whose own time is known. A broker keeps
    only the time of a message's first death in a queue for a reason."""
    deaths_left_out: int
    """Number of deaths that were not examined for bursts because their own time is unknown: a broker keeps only the
    time of a message's first death in a queue for a reason."""
    largest_bursts: tuple[Burst, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
