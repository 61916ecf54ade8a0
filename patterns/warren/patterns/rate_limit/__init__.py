"""Rate limits: a largest number of handler starts per time, in one process or over all processes."""

from warren.patterns.rate_limit.local_rate_limiter import LocalRateLimiter
from warren.patterns.rate_limit.rate_limit import RateLimit, RateLimitStatistics
from warren.patterns.rate_limit.rate_limiter import RateLimiter, RateLimitExceeded
from warren.patterns.rate_limit.redis_rate_limiter import RedisRateLimiter

__all__ = [
    "LocalRateLimiter",
    "RateLimit",
    "RateLimitExceeded",
    "RateLimitStatistics",
    "RateLimiter",
    "RedisRateLimiter",
]
