"""Rule of the token bucket: computes whether tokens can be reserved, and when they become available.

A bucket is stored as one time, at which it would be full again (GCRA, the generic cell rate algorithm of ITU-T I.371,
as a virtual schedule). A reservation makes that time later, and the wait until the reserved tokens are available
follows from it. Tokens can be reserved before they are available, so a waiting caller need not ask again. The rule
reads neither a clock nor a store.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from warren.sdk import ConfigError
from warren.sdk.extend import check_whole_number

MICROSECOND: Final = timedelta(microseconds=1)
FOREVER: Final = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class Rate:
    """Rate and burst of a token bucket.

    :ivar count: tokens that become available in the time `per`.
    :ivar burst: largest number of tokens that collect while none is used, and so may be reserved at once.
    :raises ConfigError: a number is too small, or the rate is above one token per microsecond.
    """

    count: int
    per: timedelta
    burst: int

    def __post_init__(self) -> None:
        check_whole_number("the count of a rate", self.count)
        check_whole_number("the burst of a rate", self.burst)
        if self.per // MICROSECOND < self.count:
            raise ConfigError(
                f"a rate of {self.count} in {self.per} with a burst of {self.burst} is not possible: a rate is at"
                " most one token per microsecond"
            )

    @property
    def interval_us(self) -> int:
        """Microseconds in which the bucket gains one token."""
        return self.per // MICROSECOND // self.count

    def check_cost(self, cost: int) -> None:
        """Raise `ConfigError` if `cost` is below 1 or above the burst: a bucket never has more tokens than its burst,
        so they could not be reserved."""
        if isinstance(cost, bool) or not isinstance(cost, int) or not 1 <= cost <= self.burst:
            raise ConfigError(f"a cost of {cost!r} is no whole number from 1 to the burst of {self.burst}")


def reserve_tokens(full_us: int, now_us: int, rate: Rate, cost: int, within_us: int) -> tuple[bool, int, int]:
    """Reserve `cost` tokens if they become available within `within_us` microseconds.

    :param full_us: stored time at which the bucket is full again, in microseconds of the same clock as `now_us`.
    :return: whether the tokens are reserved, the microseconds until they are available, and the time at which the
        bucket is full again after that.
    """
    after = max(full_us, now_us) + cost * rate.interval_us
    wait = max(0, after - rate.burst * rate.interval_us - now_us)
    return (True, wait, after) if wait <= within_us else (False, wait, full_us)


__all__ = ["FOREVER", "MICROSECOND", "Rate", "reserve_tokens"]
