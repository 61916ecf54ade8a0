"""Cancellable delays: delay reminders, list them, replace one and cancel one by its key.

Run it: AMQP_URL=memory:// python examples/delay_cancelled.py   (memory:// is a broker in this process; or name one)
"""

import asyncio
import tempfile
from datetime import timedelta
from pathlib import Path

from warren.patterns import BinaryDelayQueues, Delay, SqliteStore
from warren.sdk import App, Command


class Remind(Command, queue="reminders"):
    text: str


async def main(folder: Path) -> None:
    app, reminded = App(), asyncio.Event()
    # With several machines: RedisStore(url).
    delay = Delay(
        strategy=BinaryDelayQueues(unit=timedelta(milliseconds=100)),
        store=SqliteStore(folder / "delay.sqlite"),
    )
    app.include(delay)

    @app.handle(Remind)
    async def remind(reminder: Remind) -> None:
        print(reminder.text)
        reminded.set()

    async with app:
        await delay.after(Remind(text="pay order 41"), timedelta(hours=1), cancel_key="order 41")
        await delay.after(Remind(text="pay order 42"), timedelta(hours=1), cancel_key="order 42")
        print(sorted([waiting.key async for waiting in delay.delayed()]))
        print(await delay.cancel("order 41"))
        # The same key again: this reminder replaces the other.
        await delay.after(Remind(text="pay order 42 now"), timedelta(milliseconds=300), cancel_key="order 42")
        await reminded.wait()
        print(await delay.cancel("order 42"))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(main(Path(name)))
