"""How fast a backlog grows, how sure that is, and when it reaches a limit.

A backlog is the sum of what came minus what went, so it is its *changes* from step to step that are about independent
of one another, not its levels. The slope is therefore their mean, and its uncertainty theirs; a least-squares line
through the levels would have about the same slope and far too small an error. Where neighbouring changes resemble each
other (a rush lasts), they count as fewer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist, fmean, stdev

LEVEL = 0.95
MIN_CHANGES = 4
"""Changes; with fewer nothing is said."""


@dataclass(frozen=True)
class Growth:
    """Messages a second, and the ends of the 95 % interval."""

    slope: float
    low: float
    high: float


@dataclass(frozen=True)
class Forecast:
    """When a queue reaches its limit, if it goes on as it did, in seconds from now."""

    limit: float
    unit: str
    """`messages` or `bytes`."""
    level: float
    """Now, in that unit."""
    full_in: float | None
    """None: not, as it goes."""
    earliest: float | None
    latest: float | None
    """With the ends of the growth's interval; None: it may never be."""


def growth(levels: Sequence[float], step: float) -> Growth | None:
    """Of a backlog, from its levels at the ends of steps of so many seconds; None where they are too few."""
    changes = [after - before for before, after in pairwise(levels)]
    if len(changes) < MIN_CHANGES:
        return None
    mean = fmean(changes)
    spread = stdev(changes)
    margin = 0.0
    if spread:
        correlation = autocorrelation(changes, mean)
        effective_count = max(len(changes) * (1 - correlation) / (1 + correlation), 2.0)
        margin = student_t_quantile(effective_count - 1) * spread / math.sqrt(effective_count)
    return Growth(mean / step, (mean - margin) / step, (mean + margin) / step)


def autocorrelation(changes: Sequence[float], mean: float) -> float:
    """The correlation of neighbours, as far as it makes them count less: from 0 to 0.9."""
    total = sum((change - mean) ** 2 for change in changes)
    pairs = pairwise(changes)
    return min(max(sum((one - mean) * (next_ - mean) for one, next_ in pairs) / total, 0.0), 0.9)


def student_t_quantile(degrees: float) -> float:
    """The two-sided 95 % quantile of Student's t (Abramowitz and Stegun 26.7.5; within 1 % from 3 degrees on)."""
    z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
    if degrees < 3:
        # The expansion fails here: between the exact values for 1 and 2 degrees, and that for 3.
        known = (12.706, 4.303, 3.182)
        at = max(degrees, 1.0) - 1
        return known[int(at)] + (known[int(at) + 1] - known[int(at)]) * (at - int(at))
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return sum(term / degrees**power for power, term in enumerate(terms))


def forecast(level: float, limit: float, unit: str, growing: Growth | None, size: float = 1.0) -> Forecast:
    """:param size: of a message in that unit: its bytes, or 1"""

    def reached(slope: float) -> float | None:
        if level >= limit:
            return 0.0
        return (limit - level) / (slope * size) if slope * size > 0 else None

    if growing is None:
        return Forecast(limit, unit, level, reached(0), None, None)
    # A slope that may as well be none is no forecast.
    is_significant = growing.low > 0 or level >= limit
    return Forecast(
        limit,
        unit,
        level,
        reached(growing.slope) if is_significant else None,
        reached(growing.high),
        reached(growing.low) if is_significant else None,
    )
