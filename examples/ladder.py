"""Delay ladder: reminders after fixed delays, each with its own handler.

Run it: AMQP_URL=memory:// python examples/ladder.py   (memory:// is a broker in this process; or name one)
"""

import asyncio

from warren.patterns import DelayLadder
from warren.sdk import App, Message


class Remind(Message):
    text: str


app = App()
ladder = DelayLadder(
    "reminders", "200ms", "900ms"
)  # default: 5 s, 10 s, 30 s, 1 min, 5 min, 10 min, 30 min, 1 h
app.include(ladder)
done = asyncio.Event()


@app.handle(Remind, queue=ladder.queue("200ms"))
async def gently(reminder: Remind) -> None:
    print("please", reminder.text)


@app.handle(Remind, queue=ladder.queue("900ms"))
async def firmly(reminder: Remind) -> None:
    print("now", reminder.text)
    done.set()


async def main() -> None:
    async with app:
        await ladder.publish(Remind(text="pay order 42"), "900ms")
        await ladder.publish(Remind(text="pay order 42"), "200ms")
        await done.wait()


if __name__ == "__main__":
    asyncio.run(main())
