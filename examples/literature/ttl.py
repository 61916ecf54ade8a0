"""Time to live: of one message, of all messages of a queue, and of a queue.

The original takes them for the same. A TTL of a queue lets messages leave at the head at once; a TTL of a
message is judged only when it comes to the head: a short one behind a long one waits as long as that (and
so is no delay). What expires is gone, unless the queue has a dead letter exchange. `x-expires` deletes the
queue itself when nobody uses it, with all that is in it, and dead-letters nothing.
"""

import asyncio
from datetime import timedelta

from warren.patterns import ParkingLot
from warren.sdk import App, Queue, Unroutable

SHORT = timedelta(milliseconds=50)

app = App()
app.declare(
    Queue("literature.mixed"),
    Queue("literature.short", message_ttl=SHORT),
    Queue("literature.unused", type="classic", expires=4 * SHORT, dead_letter_exchange=None),
)


async def expired(queue: str, count: int) -> list[str]:
    """What has left it for its dead letter queue, as soon as there is so much."""
    while True:
        async with ParkingLot(str(app.url), f"{queue}.dead") as lot:
            if lot.size >= count:
                return [f"{letter.delivery.body.decode()} {letter.reason}" async for letter in lot]


async def deleted(queue: str) -> bool:
    """Whether the queue is gone, sooner or later. To publish is no use of a queue; to declare it again would be one."""
    while True:
        try:
            await app.publish(b"lost with the queue", key=queue)
        except Unroutable:
            return True
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

        # Its time has passed, and nobody has looked at it yet: it is not at the head.
        print("behind a longer one:", len(await expired("literature.mixed", 1)) == 1)


if __name__ == "__main__":
    asyncio.run(main())
