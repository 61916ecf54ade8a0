"""Idempotent handling: a card is charged once although the command arrives twice, and both callers get the same receipt.

Run it: python examples/once.py   (AMQP_URL chooses a broker; without it nothing else is needed)
"""

import asyncio
import tempfile
from datetime import timedelta

from warren.patterns import Once, SqliteStore
from warren.sdk import App, Request


class ChargeCard(Request[str], queue="charges"):
    order_id: str


app = App()
store = SqliteStore(f"{tempfile.mkdtemp()}/decisions.sqlite")  # with several processes: RedisStore(url)


@app.handle(ChargeCard, once=Once(store, key=lambda command: command.order_id, keep=timedelta(days=1)))
async def charge(command: ChargeCard) -> str:
    print(f"charging for order {command.order_id}")
    return f"receipt for order {command.order_id}"


async def main() -> None:
    async with app:
        print(await app.call(ChargeCard(order_id="42")))
        # Again: from an impatient customer, or from a caller that lost the reply.
        print(await app.call(ChargeCard(order_id="42")))


if __name__ == "__main__":
    asyncio.run(main())
