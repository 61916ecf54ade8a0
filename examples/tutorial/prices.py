"""The price service: it answers requests."""

from decimal import Decimal

from pydantic import BaseModel

from warren.sdk import App, RemoteError, Request


class Price(BaseModel):
    total: Decimal


class GetPrice(Request[Price], queue="prices"):
    item: str
    quantity: int = 1


PRICES = {"lamp": Decimal("9.90"), "desk": Decimal("149.00")}

app = App()


@app.handle(GetPrice)
async def price(request: GetPrice) -> Price:
    if request.item not in PRICES:
        raise RemoteError("unknown_item", f"there is no {request.item}")
    return Price(total=PRICES[request.item] * request.quantity)
