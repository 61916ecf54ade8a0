"""Add handlers to a running App, for a tenant for example, and remove them again."""

import asyncio

from warren.sdk import App, Event, Router


class OrderPlaced(Event, exchange="orders"):
    order_id: int


app = App("memory://")
seen = asyncio.Event()


def tenant_router(tenant: str) -> Router:
    router = Router(prefix=f"{tenant}.")

    @router.handle(OrderPlaced, queue="orders", keys=[f"{tenant}.order.placed"])
    async def bill(order: OrderPlaced) -> None:
        print(tenant, "billed", order.order_id)
        seen.set()

    return router


async def main() -> None:
    async with app:
        acme = await app.include_now(tenant_router("acme"))
        await app.publish(OrderPlaced(order_id=42), key="acme.order.placed")
        await seen.wait()
        await acme.remove()
        await app.publish(OrderPlaced(order_id=43), key="acme.order.placed")
        message = await app.get("acme.orders", timeout=10)
        print("still in its queue:", message is not None)


if __name__ == "__main__":
    asyncio.run(main())
