"""Remote calls: a typed reply, an error reply, and a call that nobody answers.

The broker runs in this process unless AMQP_URL names another.
"""

import asyncio
from decimal import Decimal

from pydantic import BaseModel

from warren.sdk import App, CallTimeout, RemoteError, Request


class Quote(BaseModel):
    price: Decimal


class GetQuote(Request[Quote], queue="quotes"):
    sku: str


class GetStock(Request[int], queue="stock"):
    sku: str


app = App()
app.publishes(GetStock)  # declare its queue at the start, not within the first call's timeout


@app.handle(GetQuote)
async def quote(request: GetQuote) -> Quote:  # a type checker rejects any other return type
    if request.sku != "lamp":
        raise RemoteError("unknown_sku", f"there is no {request.sku}", details={"sku": request.sku})
    return Quote(price=Decimal("9.90"))


async def main() -> None:
    async with app:
        answer = await app.call(GetQuote(sku="lamp"), timeout=10)  # a Quote for the type checker
        print(f"a lamp is {answer.price}")
        try:
            await app.call(GetQuote(sku="desk"))
        except RemoteError as error:
            print(f"{error.code}: {error.message}")
        try:
            await app.call(GetStock(sku="lamp"), timeout=0.2)  # no handler
        except CallTimeout as error:
            print(f"no reply; it may have been handled: {error.outcome == 'unknown'}")


if __name__ == "__main__":
    asyncio.run(main())
