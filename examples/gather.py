"""Scatter-gather: ask all suppliers for a price, and collect replies, errors and missing answers.

The broker runs in this process unless AMQP_URL names another.
"""

import asyncio
from decimal import Decimal

from pydantic import BaseModel

from warren.sdk import App, Fault, Scatter


class Offer(BaseModel):
    supplier: str
    price: Decimal


class NotSold(Fault[None], code="not_sold"):
    """An error that the caller receives as this class."""


class AskPrice(
    Scatter[Offer],
    exchange="prices",
    key="price.asked",
    audience=["lumen.prices", "glow.prices", "wick.prices", "asleep.prices"],
    faults=[NotSold],
):
    sku: str


app = App()


@app.handle(AskPrice, queue="lumen.prices")
async def lumen(request: AskPrice) -> Offer:
    return Offer(supplier="lumen", price=Decimal("9.90"))


@app.handle(AskPrice, queue="glow.prices")
async def glow(request: AskPrice) -> Offer:
    return Offer(supplier="glow", price=Decimal("8.50"))


@app.handle(AskPrice, queue="wick.prices")
async def wick(request: AskPrice) -> Offer:
    raise NotSold("we sell candles")


async def main() -> None:
    async with app:
        gathered = await app.gather(AskPrice(sku="lamp"), timeout=10)
        best = min(gathered.values, key=lambda offer: offer.price)
        print(f"{len(gathered.values)} offers, the best: {best.supplier} for {best.price}")
        print(f"refused: {[error.message for error in gathered.errors]}")
        print(f"silent: {sorted(gathered.silent)}")

        async for reply in app.gather(AskPrice(sku="lamp"), replies=1, timeout=10):  # as they arrive
            if reply.error is None:
                print("an offer is enough")


if __name__ == "__main__":
    asyncio.run(main())
