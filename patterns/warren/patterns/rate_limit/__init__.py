"""Rate limits: so many in such a time, in one process or over all of them."""

from warren.patterns.rate_limit.rate_limit import RateLimit, RateLimitStatistics
from warren.patterns.rate_limit.redis_token_bucket import RedisLimiter
from warren.patterns.rate_limit.token_bucket import Limited, Limiter, LocalLimiter

__all__ = ["Limited", "Limiter", "LocalLimiter", "RateLimit", "RateLimitStatistics", "RedisLimiter"]
