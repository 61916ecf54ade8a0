"""Publish and subscribe: every log line goes to all who listen.

The original gives each listener an exclusive queue with a name of the broker's: while a listener restarts,
nothing is kept for it. Here each listener has a durable queue with a name, which the event names as its
audience, so that also what is published before the listener's first start reaches it.
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
