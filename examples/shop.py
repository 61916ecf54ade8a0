"""The service of a shop, to be run with `warren run shop:app` in this folder."""

from datetime import timedelta
from decimal import Decimal

from pydantic import BaseModel

from warren.sdk import App, Binding, Declarable, Event, Exchange, Queue, RemoteError, Request

# Unroutable messages are kept: an alternate exchange of type fanout, and a queue bound to it.
UNROUTED: list[Declarable] = [
    Exchange("orders.unrouted", type="fanout"),
    Queue("orders.unrouted", message_ttl=timedelta(days=7)),
    Binding("orders.unrouted", "orders.unrouted"),
]
ORDERS = Exchange("orders", alternate_exchange="orders.unrouted")


class OrderPlaced(Event, exchange=ORDERS, key="order.placed", audience=["billing"]):
    order_id: str
    total: Decimal


class Quote(BaseModel):
    price: Decimal


class GetQuote(Request[Quote], queue="quotes"):
    sku: str


app = App(name="shop")  # connects to the broker in AMQP_URL
app.declare(*UNROUTED, Queue("audit", max_age=timedelta(days=30)), Binding("orders", "audit", "#"))
app.publishes(OrderPlaced)


@app.handle(OrderPlaced, queue="billing", concurrency=4)
async def bill(order: OrderPlaced) -> None:
    """Print the bill of an order."""
    print(f"billed {order.order_id}", flush=True)


@app.handle(GetQuote)
async def quote(request: GetQuote) -> Quote:
    """Return the price of an item."""
    if request.sku != "lamp":
        raise RemoteError("unknown_sku", f"there is no {request.sku}")
    return Quote(price=Decimal("9.90"))
