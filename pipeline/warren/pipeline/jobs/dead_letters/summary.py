"""The numbers of the job `dead-letters`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any


@dataclass(frozen=True)
class BurstRule:
    """What is one: at least `least` deaths of one reason, none of them more than `gap` after the one before."""

    gap: timedelta = timedelta(seconds=10)
    least: int = 10
    of: str = "queue"
    """`queue`: of one reason in one queue; `reason`: of one reason, wherever."""


@dataclass(frozen=True)
class Place:
    """A queue and a reason."""

    queue: str
    reason: str
    deaths: int
    messages: int
    """Different messages; one without an id counts by itself."""
    first: str | None
    last: str | None
    median_after: float | None
    """Seconds from the publish to the death."""
    p90_after: float | None


@dataclass(frozen=True)
class Group:
    """What letters have in common: the words are null where they do not say."""

    words: tuple[str | None, ...]
    deaths: int


@dataclass(frozen=True)
class Bucket:
    """Over `above` and at most `up_to` (None: no end)."""

    above: float | None
    up_to: float | None
    count: int


@dataclass(frozen=True)
class DeathDelay:
    """How long after its publish a message died, in seconds, over the deaths of which both times are known."""

    known: int
    by_source: dict[str, int]
    """How many letters' publish is known from what: a key of `letters.PUBLISHED_FROM`."""
    within_a_second: int
    """Of the known ones, how many are true to a second; the others to a millisecond."""
    least_only: int
    """Of these only an earlier death is known, not the publish; they are not among the known ones."""
    unknown: int
    before_publish: int
    """Of the known ones, deaths dated before their publish: two clocks disagree."""
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
    """None where several queues are taken together."""
    reason: str
    began: str
    ended: str
    seconds: float
    deaths: int
    type: str | None
    """The commonest among them."""


@dataclass(frozen=True)
class TimelineStep:
    """Deaths from `at` until the next step, by reason."""

    at: str
    deaths: dict[str, int]


@dataclass(frozen=True)
class Summary:
    """What died, where, why, how often, how long after it was published, and in which bursts."""

    letters: int
    repeated: int
    """Letters of a death that another letter tells too."""
    unexplained: int
    """Messages whose headers say nothing of a death."""
    deaths: int
    messages: int
    first: str | None
    last: str | None
    by_reason: dict[str, int]
    places: tuple[Place, ...]
    more_places: int
    """Places beyond those listed."""
    origins: tuple[Group, ...]
    """By exchange and routing key of the publish."""
    types: tuple[Group, ...]
    errors: tuple[Group, ...]
    """By the exception's type, where the SDK told it."""
    times: tuple[Bucket, ...]
    """Messages by how often they died."""
    after: DeathDelay
    step_seconds: int
    timeline: tuple[TimelineStep, ...]
    """Empty steps are left out."""
    undated: int
    """Deaths without a time."""
    burst_gap_seconds: float
    burst_least: int
    burst_of: str
    bursts: int
    deaths_in_bursts: int
    deaths_beside_bursts: int
    """Deaths that bursts were looked for in, and that belong to none."""
    deaths_left_out: int
    """Deaths whose own time is not known: a broker keeps only that of the first one in a queue for a reason."""
    largest_bursts: tuple[Burst, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
