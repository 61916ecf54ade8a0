"""Rate limits: so many in such a time, in one process or over all of them."""

from warren.patterns.rate_limit.limited import RateLimit, RateLimitStatistics
from warren.patterns.rate_limit.limiter import Limited, Limiter, LocalLimiter
from warren.patterns.rate_limit.redis import RedisLimiter

__all__ = ["Limited", "Limiter", "LocalLimiter", "RateLimit", "RateLimitStatistics", "RedisLimiter"]
