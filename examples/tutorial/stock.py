"""The stock service: it reserves goods once for each order, however often the event arrives."""

from orders import OrderPlaced
from warren.patterns import Once, SqliteStore
from warren.sdk import App

app = App()
once = Once(SqliteStore("decisions.sqlite"), key=lambda order: order.order_id)


@app.handle(OrderPlaced, queue="stock", once=once)
async def reserve(order: OrderPlaced) -> None:
    print(f"order {order.order_id}: goods reserved")
