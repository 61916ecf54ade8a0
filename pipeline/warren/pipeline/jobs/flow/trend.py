"""Growth of a backlog with its confidence interval, and forecast of the time until a limit.

A backlog (number of ready messages) is the sum of arrivals minus departures. Its *changes* from one time step to the
next are therefore approximately independent, the successive backlogs are not. The slope is the mean of the changes,
with their standard error; a least-squares line through the backlogs would have about the same slope and a much too
small error. If neighbouring changes are correlated, as in a rush that lasts several steps, the changes are counted as
fewer independent ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist, fmean, stdev

LEVEL = 0.95
"""Confidence level of the interval that is given for the growth of a backlog."""
MIN_CHANGES = 4
"""Minimum number of changes of the backlog, from one time step to the next, from which growth is computed."""


@dataclass(frozen=True)
class Growth:
    """Growth of a backlog in messages per second (`slope`), with the ends of its 95 % confidence interval."""

    slope: float
    low: float
    high: float


@dataclass(frozen=True)
class Forecast:
    """Forecast of when a queue reaches its maximum length if it grows on at the same rate; times are in seconds after
    the end of the observed period.
    """

    limit: float
    unit: str
    """Unit of `limit` and `level` (the queue's maximum and current length): `messages` or `bytes`."""
    level: float
    """Current number of ready messages or of their bytes."""
    full_in: float | None
    """Seconds until the limit is reached; None if the queue does not grow significantly."""
    earliest: float | None
    latest: float | None
    """Seconds until the limit is reached if the growth is the slowest of its 95 % confidence interval; `earliest` is
    for the fastest. None if the limit is not reached with that growth."""


def growth(levels: Sequence[float], step: float) -> Growth | None:
    """Return the growth of a backlog; None if there are too few time steps.

    :param levels: numbers of ready messages at the ends of successive time steps
    :param step: seconds from one of them to the next
    """
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
    """Return the correlation of neighbouring changes of a backlog, limited to the range 0 to 0.9.

    :param changes: changes of the backlog from one time step to the next
    :param mean: mean of the changes
    """
    total = sum((change - mean) ** 2 for change in changes)
    pairs = pairwise(changes)
    return min(max(sum((one - mean) * (next_ - mean) for one, next_ in pairs) / total, 0.0), 0.9)


def student_t_quantile(degrees: float) -> float:
    """Return the two-sided 95 % quantile of Student's t distribution (Abramowitz and Stegun 26.7.5).

    The result is exact to 1 % for 3 and more degrees of freedom.

    :param degrees: degrees of freedom
    """
    z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
    if degrees < 3:
        # The expansion fails here: interpolate between the exact values for 1, 2 and 3 degrees.
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
    """Return the forecast of when a queue reaches its maximum length.

    :param level: current number of ready messages, or their bytes
    :param limit: maximum length of the queue in the same unit
    :param unit: unit of both: `messages` or `bytes`
    :param growing: growth in messages per second
    :param size: average size of a message in that unit: its bytes, or 1
    """

    def reached(slope: float) -> float | None:
        if level >= limit:
            return 0.0
        return (limit - level) / (slope * size) if slope * size > 0 else None

    if growing is None:
        return Forecast(limit, unit, level, reached(0), None, None)
    # A slope that is not significant gives no forecast.
    is_significant = growing.low > 0 or level >= limit
    return Forecast(
        limit,
        unit,
        level,
        reached(growing.slope) if is_significant else None,
        reached(growing.high),
        reached(growing.low) if is_significant else None,
    )
