"""For Celery's users: tasks with retries, a countdown and results, called one by one and as a group.

Run it: AMQP_URL=memory:// python examples/coming_from_celery.py   (memory:// is a broker in this process; or name one)
"""

import asyncio
from datetime import timedelta

from warren.patterns import Delay
from warren.sdk import App, Command, Request, Retry


class Charge(Command, queue="charges"):
    order_id: str
    cents: int


class GetTotal(Request[int], queue="totals"):
    order_id: str


app, delay = App(), Delay()
app.include(delay)
charged = asyncio.Queue[str]()


def charge_card(cents: int) -> str:
    return f"charged {cents}"  # imagine a library that blocks


@app.handle(Charge, retry=Retry(3).then("5s", "1m", "10m", jitter=0.2).on(ConnectionError), concurrency=8)
async def charge(command: Charge) -> None:
    await charged.put(await asyncio.to_thread(charge_card, command.cents))


@app.handle(GetTotal)
async def get_total(request: GetTotal) -> int:
    return 100 * int(request.order_id)


async def main() -> None:
    async with app:  # in a service: warren run tasks:app
        await app.publish(Charge(order_id="42", cents=990))  # charge.delay("42", 990)
        print(await charged.get())

        later = Charge(order_id="42", cents=10)
        await delay.after(later, timedelta(milliseconds=200))  # .apply_async(countdown=...)
        print(await charged.get())

        print(await app.call(GetTotal(order_id="42"), timeout=10))  # get_total.delay("42").get(timeout=10)
        group = [app.call(GetTotal(order_id=order)) for order in ("41", "42")]
        print(sum(await asyncio.gather(*group)))  # a group, or a chord whose body is sum


if __name__ == "__main__":
    asyncio.run(main())
