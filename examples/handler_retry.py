"""Retries: first in this process, then delayed on the broker, and not for errors that cannot pass."""

import asyncio

from warren.sdk import App, Command, Delivery, Retry


class Charge(Command, queue="charges"):
    order_id: str


app = App()
done = asyncio.Event()

# Two attempts at once; then two after 100 ms and two after 300 ms (in production: "5s", "1m", "10m").
transient_errors = Retry(2).then("100ms", "300ms").on(ConnectionError)


@app.handle(Charge, retry=transient_errors)
async def charge(command: Charge, delivery: Delivery) -> None:
    if command.order_id == "unknown":
        raise LookupError("no such order")  # not retried: dead-lettered at once
    if delivery.attempt < 3:
        raise ConnectionError("the bank does not answer")
    print("charged at delivery", delivery.attempt)
    done.set()


@app.handle(bytes, queue="charges.dead")
async def show_dead_letter(body: bytes, delivery: Delivery) -> None:
    print("dead:", delivery.headers["warren-dead-error"])


async def main() -> None:
    async with app:
        await app.publish(Charge(order_id="unknown"))
        await app.publish(Charge(order_id="42"))
        await done.wait()


if __name__ == "__main__":
    asyncio.run(main())
