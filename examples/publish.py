"""Publishing: every publish ends with the broker's confirm, or with an error that names the outcome."""

import asyncio

from warren.sdk import App, Binding, Command, Delivery, Exchange, Nacked, Queue, Unroutable


class Ship(Command, queue="shipping"):
    order_id: str
    parcels: int = 1


async def main() -> None:
    app, shipped = App(), asyncio.Event()
    app.declare(
        Exchange("legacy", type="direct"),
        Queue(
            "legacy.small", type="classic", dead_letter_exchange=None, max_length=1, overflow="reject-publish"
        ),
        Binding("legacy", "legacy.small", key="small"),
    )

    @app.handle(Ship, concurrency=1)
    async def ship(command: Ship, delivery: Delivery) -> None:
        if command.parcels == 0:
            raise ValueError("nothing to ship")  # attempted 3 times, then dead-lettered with the reason
        if command.order_id == "99":
            shipped.set()

    @app.handle(bytes, queue="shipping.dead")
    async def show_dead_letter(body: bytes, delivery: Delivery) -> None:
        print("dead:", delivery.headers["warren-dead-error"])

    async with app:
        report = await app.publish_many(Ship(order_id=str(number), parcels=number) for number in range(100))
        print("confirmed:", report.confirmed)
        await shipped.wait()
        # --8<-- [start:properties]
        ship_one = Ship(order_id="100")
        await app.publish(
            ship_one, correlation_id="c1", app_id="shop", headers={"tenant": "a"}, expiration="1m"
        )
        # --8<-- [end:properties]
        try:
            await app.publish({"for": "nobody"}, exchange="legacy", key="unknown")
        except Unroutable as error:
            print("unroutable:", error.reply_code, error.routing_key)
        await app.publish(b"fits", exchange="legacy", key="small")
        try:
            await app.publish(b"too much", exchange="legacy", key="small")
        except Nacked as error:
            print("refused; worth trying again:", error.retryable)


if __name__ == "__main__":
    asyncio.run(main())
