"""Rate limits: so many in such a time, in one process or over all of them."""

from warren.patterns.rate_limit.rate_limit import RateLimit, RateLimitStatistics
from warren.patterns.rate_limit.rate_limiter import LocalRateLimiter, RateLimiter, RateLimitExceeded
from warren.patterns.rate_limit.redis_rate_limiter import RedisRateLimiter

__all__ = [
    "LocalRateLimiter",
    "RateLimit",
    "RateLimitExceeded",
    "RateLimitStatistics",
    "RateLimiter",
    "RedisRateLimiter",
]
