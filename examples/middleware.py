"""Middlewares: functions around every publish and every handling attempt, here to compress message bodies."""

import asyncio
import zlib
from collections.abc import Awaitable, Callable

from warren.sdk import App, Command, DeadLetter, Delivery, Outgoing


class Report(Command, queue="reports"):
    text: str


app = App()
handled = asyncio.Event()


async def compress(outgoing: Outgoing, call_next: Callable[[Outgoing], Awaitable[None]]) -> None:
    outgoing.set_body(zlib.compress(outgoing.body))
    outgoing.set("content_encoding", "deflate")
    await call_next(outgoing)  # returns after the broker's confirm


async def expand(delivery: Delivery, call_next: Callable[[Delivery], Awaitable[None]]) -> None:
    if delivery.properties.get("content_encoding") != "deflate":
        raise DeadLetter("the body is not compressed")
    await call_next(delivery.replace(body=zlib.decompress(delivery.body)))


app.middleware(publish=compress, handle=expand)


@app.handle(Report)
async def read(report: Report, delivery: Delivery) -> None:
    print(f"{len(report.text)} characters in {len(delivery.original.body)} bytes")
    handled.set()


async def main() -> None:
    async with app:
        await app.publish(Report(text="all is well. " * 100))
        await handled.wait()


if __name__ == "__main__":
    asyncio.run(main())
