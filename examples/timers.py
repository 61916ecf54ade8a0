"""Timers: a reminder at its time and a report each morning, stored durably and published by one of all processes.

Run it: AMQP_URL=memory:// python examples/timers.py   (memory:// is a broker in this process; or name one. REDIS_URL
chooses a Redis; without it a file is used)
"""

import asyncio
import os
import tempfile
from datetime import UTC, datetime, timedelta

from warren.patterns import (
    CronSchedule,
    DateSchedule,
    IntervalSchedule,
    Once,
    RedisStore,
    SqliteStore,
    Timers,
)
from warren.sdk import App, Command


class Remind(Command, queue="reminders"):
    order_id: str


class SendReport(Command, queue="reports"):
    pass


class CheckStock(Command, queue="stock.check"):
    pass


url = os.environ.get("REDIS_URL")
store = RedisStore(url) if url else SqliteStore(f"{tempfile.mkdtemp()}/timers.sqlite")
# --8<-- [start:pattern]
timers = Timers(
    "shop",
    store=store,
    sends=[Remind, SendReport, CheckStock],
    schedules=[
        CronSchedule("report", "0 6 * * MON-FRI", SendReport(), zone="Europe/Berlin"),
        IntervalSchedule("stock", timedelta(minutes=5), CheckStock(), missed="skip"),
    ],
)
app = App()
app.include(timers)


@app.handle(Remind, once=Once(store))  # each firing has its own message id, so that it takes effect once
async def remind(command: Remind) -> None:
    print(f"order {command.order_id}: do not forget to pay")
    # --8<-- [end:pattern]
    reminded.set()


reminded = asyncio.Event()


async def main() -> None:
    async with app:
        now = datetime.now(UTC)
        await timers.put(DateSchedule("remind-42", now + timedelta(seconds=1), Remind(order_id="42")))
        await timers.put(DateSchedule("remind-43", now + timedelta(hours=1), Remind(order_id="43")))
        print("cancelled:", await timers.cancel("remind-43"))
        await reminded.wait()
        for timer in sorted(await timers.scheduled(), key=lambda timer: timer.name):
            print(f"{timer.name}: {timer.schedule}")


if __name__ == "__main__":
    asyncio.run(main())
