"""Publish/subscribe: each log line goes to all subscribers.

In the textbook version each subscriber has an exclusive queue with a name that the broker generates: messages
that are published while it restarts are lost. Here each subscriber has a durable queue, which the event lists
as its audience, so that it also gets messages that were published before its first start.
"""

import asyncio

from warren.sdk import App, Event, Exchange


class LogLine(
    Event,
    exchange=Exchange("literature.logs", type="fanout"),
    key="line",
    audience=["literature.logs.disk", "literature.logs.screen"],
):
    text: str


app = App()
seen: list[str] = []
both = asyncio.Event()


def note(line: str) -> None:
    seen.append(line)
    if len(seen) == 2:
        both.set()


@app.handle(LogLine, queue="literature.logs.disk")
async def disk(line: LogLine) -> None:
    note(f"disk: {line.text}")


@app.handle(LogLine, queue="literature.logs.screen")
async def screen(line: LogLine) -> None:
    note(f"screen: {line.text}")


async def main() -> None:
    async with app:
        await app.publish(LogLine(text="started"))
        await both.wait()
    print(*sorted(seen), sep="\n")


if __name__ == "__main__":
    asyncio.run(main())
