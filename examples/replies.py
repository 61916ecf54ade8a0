"""Replies of several types, and errors that the caller receives as their class.

The broker runs in this process unless AMQP_URL names another.
"""

import asyncio
from decimal import Decimal

from pydantic import BaseModel

from warren.sdk import App, Fault, Request


class Quote(BaseModel):
    price: Decimal


class MadeToOrder(BaseModel):
    days: int


class KnownSkus(BaseModel):
    skus: list[str]


class UnknownSku(Fault[KnownSkus], code="unknown_sku"):
    """An error with details of the type `KnownSkus`, for the handler and the caller."""


class GetQuote(Request[Quote | MadeToOrder], queue="quotes.typed", faults=[UnknownSku]):
    sku: str


app = App(replies="direct")  # RabbitMQ's direct reply-to, without a reply queue


@app.handle(GetQuote)
async def quote(request: GetQuote) -> Quote | MadeToOrder:
    if request.sku == "lamp":
        return Quote(price=Decimal("9.90"))
    if request.sku == "chandelier":
        return MadeToOrder(days=30)
    raise UnknownSku(f"there is no {request.sku}", KnownSkus(skus=["lamp", "chandelier"]))


async def main() -> None:
    async with app:
        for sku in ("lamp", "chandelier", "desk"):
            try:
                match await app.call(GetQuote(sku=sku)):
                    case Quote(price=price):
                        print(f"{sku}: {price}")
                    case MadeToOrder(days=days):
                        print(f"{sku}: in {days} days")
            except UnknownSku as error:
                print(f"{error.message}, only {error.details.skus}")


if __name__ == "__main__":
    asyncio.run(main())
