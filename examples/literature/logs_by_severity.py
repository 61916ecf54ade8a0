"""Logs by severity: a direct exchange, and queues that are bound by severity.

The textbook version binds in a loop over the command line and publishes without `mandatory`: a severity
without a binding, or a misspelled one, is silently dropped. Here its publish raises `Unroutable`.
"""

import asyncio

from warren.sdk import App, Event, Exchange, Unroutable

app = App()
seen: list[str] = []
done = asyncio.Event()


class LogLine(Event, exchange=Exchange("literature.severity", type="direct"), mandatory=True):
    text: str


@app.handle(LogLine, queue="literature.severity.disk", keys=["error"])
async def disk(line: LogLine) -> None:
    note(f"disk: {line.text}")


@app.handle(LogLine, queue="literature.severity.screen", keys=["info", "warning", "error"])
async def screen(line: LogLine) -> None:
    note(f"screen: {line.text}")


def note(line: str) -> None:
    seen.append(line)
    if len(seen) == 3:
        done.set()


async def main() -> None:
    async with app:
        await app.publish(LogLine(text="no room"), key="error")
        await app.publish(LogLine(text="slow"), key="warning")
        try:
            await app.publish(LogLine(text="typing error"), key="waning")
        except Unroutable as error:
            print("no binding for", error.routing_key)
        await done.wait()
    print(*sorted(seen), sep="\n")


if __name__ == "__main__":
    asyncio.run(main())
