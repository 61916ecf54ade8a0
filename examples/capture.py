"""Capture of message life-cycle events: an App writes them to a stream, which this program reads and checks for gaps."""

import asyncio
import json

import aio_pika

from warren.broker import Broker
from warren.sdk import App, Capture, Command, DeadLetter


class Charge(Command, queue="charges"):
    order_id: str
    cents: int


async def main() -> None:
    async with Broker() as broker:
        app = App(broker.url, name="shop", capture=Capture(stream="shop.events"))
        handled: asyncio.Queue[str] = asyncio.Queue()

        @app.handle(Charge)
        async def charge(command: Charge) -> None:
            handled.put_nowait(command.order_id)
            if command.cents < 0:
                raise DeadLetter("nothing to charge")

        async with app:
            await app.publish(Charge(order_id="42", cents=990), message_id="charge-42")
            await app.publish(Charge(order_id="43", cents=-5), message_id="charge-43")
            for _ in range(2):
                await handled.get()

        await show(broker.url, "shop.events")


async def show(url: str, stream: str) -> None:
    """Print the events of each message, up to the App's event `stopped`."""
    events_of: dict[str, list[str]] = {}
    numbered = 0
    connection = await aio_pika.connect(url)
    async with connection, connection.channel() as channel:
        await channel.set_qos(prefetch_count=100)
        queue = await channel.get_queue(stream)
        async with queue.iterator(arguments={"x-stream-offset": "first"}) as batches:
            async for batch in batches:
                async with batch.process():
                    events = json.loads(batch.body)
                    # The numbers are consecutive: no event is missing.
                    assert batch.headers["sequence"] == numbered + 1
                    numbered += len(events)
                for event in events:
                    events_of.setdefault(event.get("message_id", ""), []).append(event["event"])
                if events[-1]["event"] == "stopped":
                    break
    for message_id in ("charge-42", "charge-43"):
        print(message_id, *sorted(events_of[message_id]))


asyncio.run(main())
