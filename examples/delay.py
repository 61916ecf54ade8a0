"""Delayed messages: switch a lamp after a delay or at a set time. A long delay does not hold up a short one.

Run it: AMQP_URL=memory:// python examples/delay.py   (memory:// is a broker in this process; or name one)
"""

import asyncio
from datetime import UTC, datetime, timedelta

from warren.patterns import BinaryDelayQueues, Delay
from warren.sdk import App, Command


class Switch(Command, queue="lamp"):
    on: bool


app = App()
delay = Delay(
    strategy=BinaryDelayQueues(unit=timedelta(milliseconds=100), levels=20)
)  # by default in steps of 1 s, up to 8.5 years
app.include(delay)
done = asyncio.Event()


@app.handle(Switch)
async def switch(command: Switch) -> None:
    print(f"lamp {'on' if command.on else 'off'}")
    if not command.on:
        done.set()


async def main() -> None:
    async with app:
        await delay.at(Switch(on=False), datetime.now(UTC) + timedelta(seconds=1))
        await delay.after(Switch(on=True), timedelta(milliseconds=300))
        await done.wait()


if __name__ == "__main__":
    asyncio.run(main())
