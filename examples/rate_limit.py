"""Rate limit: a service allows two calls in half a second, and the handlers of all processes together keep that limit.

Run it: python examples/rate_limit.py   (AMQP_URL and REDIS_URL choose a broker and a Redis; without them nothing
else is needed)
"""

import asyncio
import os
import time
from datetime import timedelta

from warren.patterns import LocalRateLimiter, RateLimit, RateLimiter, RedisRateLimiter, RedisStore
from warren.sdk import App, Command


class Charge(Command, queue="charges"):
    order_id: str


half = timedelta(seconds=0.5)
url = os.environ.get("REDIS_URL")
limiter: RateLimiter = (
    RedisRateLimiter(RedisStore(url), "payment-service", 2, per=half)
    if url
    else LocalRateLimiter(2, per=half)
)
app = App()
app.include(RateLimit(limiter, queues=["charges"]))
charged: list[str] = []
done = asyncio.Event()


@app.handle(Charge)
async def charge(command: Charge) -> None:
    charged.append(command.order_id)
    if len(charged) == 5:
        done.set()


async def main() -> None:
    async with app:
        began = time.monotonic()
        for number in range(5):
            await app.publish(Charge(order_id=f"{number}"))
        await done.wait()
    print("charged:", len(charged))
    print("not faster than allowed:", time.monotonic() - began > 0.7)


if __name__ == "__main__":
    asyncio.run(main())
