"""Result types of the job `dead-letters`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any


@dataclass(frozen=True)
class BurstRule:
    """Definition of a burst: at least `least` deaths of one reason, none more than `gap` after the one before."""

    gap: timedelta = timedelta(seconds=10)
    least: int = 10
    of: str = "queue"
    """`queue`: deaths of one reason in one queue; `reason`: deaths of one reason in any queue."""


@dataclass(frozen=True)
class Place:
    """Queue and reason."""

    queue: str
    reason: str
    deaths: int
    messages: int
    """Distinct messages; one without an id counts separately."""
    first: str | None
    last: str | None
    median_after: float | None
    """Seconds from publishing to the death."""
    p90_after: float | None


@dataclass(frozen=True)
class Group:
    """Letters with the same values in some columns; a value is null if the header is missing."""

    words: tuple[str | None, ...]
    deaths: int


@dataclass(frozen=True)
class Bucket:
    """Values over `above` and at most `up_to`; None is unbounded."""

    above: float | None
    up_to: float | None
    count: int


@dataclass(frozen=True)
class DeathDelay:
    """Seconds from publishing to death, over the deaths for which both times are known."""

    known: int
    by_source: dict[str, int]
    """Number of letters by the origin of their publishing time, a key of `facts.PUBLISHED_FROM`."""
    within_a_second: int
    """Number of delays that are precise to a second; the others are precise to a millisecond."""
    least_only: int
    """Number of letters of which only an earlier death is known, not the publishing time; not among the known ones."""
    unknown: int
    before_publish: int
    """Number of deaths dated before publishing, because two clocks disagree; among the known ones."""
    minimum: float | None
    maximum: float | None
    mean: float | None
    quantiles: dict[str, float]
    """By level ("0.50"), interpolated linearly between neighbours."""
    histogram: tuple[Bucket, ...]


@dataclass(frozen=True)
class Burst:
    """Deaths of one reason close together."""

    queue: str | None
    """None if the burst covers several queues."""
    reason: str
    began: str
    ended: str
    seconds: float
    deaths: int
    type: str | None
    """Most frequent message type in the burst."""


@dataclass(frozen=True)
class TimelineStep:
    """Deaths by reason, from `at` until the next step."""

    at: str
    deaths: dict[str, int]


@dataclass(frozen=True)
class Summary:
    """Dead letters by place, reason, frequency, delay, time and burst."""

    letters: int
    repeated: int
    """Letters about a death that another letter reports too."""
    unexplained: int
    """Messages without headers about a death."""
    deaths: int
    messages: int
    first: str | None
    last: str | None
    by_reason: dict[str, int]
    places: tuple[Place, ...]
    more_places: int
    """Number of places beyond those listed."""
    origins: tuple[Group, ...]
    """By exchange and routing key of the publish."""
    types: tuple[Group, ...]
    errors: tuple[Group, ...]
    """By type of exception, where the SDK recorded it."""
    times: tuple[Bucket, ...]
    """Messages by how often they died."""
    after: DeathDelay
    step_seconds: int
    timeline: tuple[TimelineStep, ...]
    """Steps without deaths are left out."""
    undated: int
    """Deaths without a time."""
    burst_gap_seconds: float
    burst_least: int
    burst_of: str
    bursts: int
    deaths_in_bursts: int
    deaths_beside_bursts: int
    """Deaths that were examined for bursts and belong to none."""
    deaths_left_out: int
    """Deaths whose own time is unknown: a broker keeps only that of the first one in a queue for a reason."""
    largest_bursts: tuple[Burst, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
