"""Time to live: of a message, of all messages of a queue, and of a queue.

Textbooks often take the three for the same. A queue's message TTL expires messages at the head at once. A
message's own TTL is checked only when the message reaches the head: a short TTL behind a long one waits as
long, and so is no delay. Expired messages are dropped unless the queue has a dead letter exchange.
`x-expires` deletes a queue that nobody uses, with its messages, and dead-letters nothing.
"""

import asyncio
from datetime import timedelta

from warren.patterns import ParkingLot
from warren.sdk import App, Nacked, Queue, Unroutable

SHORT = timedelta(milliseconds=50)

app = App()
app.declare(
    Queue("literature.mixed"),
    Queue("literature.short", message_ttl=SHORT),
    Queue("literature.unused", type="classic", expires=4 * SHORT, dead_letter_exchange=None),
)


async def expired(queue: str, count: int) -> list[str]:
    """Wait until `count` messages of the queue are dead-lettered; return their bodies and reasons."""
    while True:
        async with ParkingLot(str(app.url), f"{queue}.dead") as lot:
            if lot.size >= count:
                return [f"{letter.delivery.body.decode()} {letter.reason}" async for letter in lot]


async def deleted(queue: str) -> bool:
    """Wait until the queue is deleted. A publish does not count as use of the queue; a declaration would."""
    while True:
        try:
            await app.publish(b"lost with the queue", key=queue)
        except Unroutable:
            return True
        except Nacked:
            # RabbitMQ refuses a message whose queue is deleted at that moment.
            continue
        await asyncio.sleep(0.05)


async def main() -> None:
    async with app:
        await app.publish(b"short", key="literature.mixed", expiration=SHORT)
        print("of a message:", await expired("literature.mixed", 1))
        await app.publish(b"long", key="literature.mixed", expiration=timedelta(hours=1))
        await app.publish(b"behind it", key="literature.mixed", expiration=SHORT)

        await app.publish(b"one", key="literature.short")
        await app.publish(b"two", key="literature.short")
        print("of a queue:", await expired("literature.short", 2))

        print("the queue itself:", await deleted("literature.unused"))

        # Its TTL has passed, but the message is not at the head of the queue yet.
        print("behind a longer one:", len(await expired("literature.mixed", 1)) == 1)


if __name__ == "__main__":
    asyncio.run(main())
