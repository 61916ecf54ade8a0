"""Retrying: here first, then later by way of the broker, and never what cannot succeed."""

import asyncio

from warren.sdk import App, Command, Delivery, Retry


class Charge(Command, queue="charges"):
    order_id: str


app = App()
done = asyncio.Event()

# Tried twice in this process; then after 100 ms and after 300 ms, twice each (in a shop: "5s", "1m", "10m").
patient = Retry(2).then("100ms", "300ms").on(ConnectionError)


@app.handle(Charge, retry=patient)
async def charge(command: Charge, delivery: Delivery) -> None:
    if command.order_id == "unknown":
        raise LookupError("no such order")  # no attempt will change that: dead-lettered at once
    if delivery.attempt < 3:
        raise ConnectionError("the bank does not answer")
    print("charged at delivery", delivery.attempt)
    done.set()


@app.handle(bytes, queue="charges.dead")
async def bury(body: bytes, delivery: Delivery) -> None:
    print("dead:", delivery.headers["warren-dead-error"])


async def main() -> None:
    async with app:
        await app.publish(Charge(order_id="unknown"))
        await app.publish(Charge(order_id="42"))
        await done.wait()


if __name__ == "__main__":
    asyncio.run(main())
