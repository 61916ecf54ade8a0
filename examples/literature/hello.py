"""Hello: one message through one queue.

The textbook version publishes to an undeclared or transient queue, without confirms and without `mandatory`,
and consumes with automatic acknowledgement: a message is lost wherever one of the processes or the broker
stops. Here the queue is durable, the message is persistent and confirmed, and it is acknowledged after its
handler returned.
"""

import asyncio

from warren.sdk import App, Command


class Greet(Command, queue="literature.hello"):
    whom: str


app = App()
greeted = asyncio.Event()


@app.handle(Greet)
async def greet(message: Greet) -> None:
    print("Hello", message.whom)
    greeted.set()


async def main() -> None:
    async with app:
        await app.publish(Greet(whom="World"))
        await greeted.wait()


if __name__ == "__main__":
    asyncio.run(main())
