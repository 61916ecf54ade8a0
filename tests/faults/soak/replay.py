"""Replay of 100,000 dead letters by a process that is killed 40 times: none is lost, few are duplicated.

A duplicate was published and not yet acknowledged when the process died: at most the messages in flight, and about as
many with acknowledgements in transit.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from random import Random

from tests.support.broker_process import BrokerProcess
from tests.support.polling import eventually
from tests.support.worker_host import WorkerChannel
from tests.support.worker_processes import Workers, worker_host
from warren.patterns import ParkingLot, replay
from warren.patterns.dead_letters.parking_lot import count_messages
from warren.patterns.dead_letters.replay import IN_FLIGHT
from warren.sdk import App, Queue

LETTERS = 100_000
KILLS = 40
QUEUE = "orders"
PARKED = "orders.dead"


def soak(share: float, random: Random, folder: Path) -> list[str]:
    with worker_host("warren.patterns", "aio_pika") as host, BrokerProcess(folder / "broker") as broker:
        return asyncio.run(
            _killed(broker.url, host, round(LETTERS * share), max(2, round(KILLS * share)), random)
        )


async def replaying(worker: WorkerChannel, url: str) -> None:
    """Replay all parked messages, in a worker process."""
    async with ParkingLot(url, PARKED) as lot, App(url, declare="never") as app:
        worker.report("replaying")
        settled = await replay(lot, app)
        assert not settled.failed, settled.failed[0]
    worker.report("done")


async def _killed(url: str, host: Path, letters: int, kills: int, random: Random) -> list[str]:
    app = App(url)
    app.declare(Queue(QUEUE), Queue(PARKED, dead_letter_exchange=None))
    async with app:
        origin = {"warren-exchange": "", "warren-key": QUEUE}
        confirms = [await app.submit(b"%d" % n, key=PARKED, headers=origin) for n in range(letters)]
        await asyncio.gather(*confirms)
    started = time.monotonic()
    async with Workers(host) as workers:
        for number in range(kills):
            worker = await workers.start(replaying, url=url)
            await workers.wait_for("replaying", times=number + 1, seconds=60)
            wanted = round(letters * (number + random.uniform(0.3, 0.9)) / (kills + 1))

            async def reached(wanted: int = wanted) -> bool:
                return (await count_messages(url, [QUEUE]))[QUEUE] >= wanted  # type: ignore[operator]

            await eventually(reached, f"{wanted} are replayed", seconds=120)
            worker.kill()

            async def given_back() -> bool:
                counts = await count_messages(url, [QUEUE, PARKED])
                return sum(count or 0 for count in counts.values()) >= letters

            await eventually(given_back, "the broker has given back what was held", seconds=60)
        await workers.start(replaying, url=url)
        await workers.wait_for("done", seconds=600)
    elapsed = time.monotonic() - started
    assert await count_messages(url, [PARKED]) == {PARKED: 0}, "the parking lot is not empty"
    async with ParkingLot(url, QUEUE) as lot:
        arrived = Counter([int(letter.delivery.body) async for letter in lot])
    missing = letters - len(arrived)
    assert missing == 0, f"{missing} of {letters} letters are lost"
    twice = sum(arrived.values()) - letters
    assert twice <= kills * IN_FLIGHT * 2, f"{twice} letters came twice after {kills} kills"
    return [
        f"{letters:,} letters replayed over {kills} kills: none lost, {twice:,} came twice; {elapsed:.0f} s, "
        f"{sum(arrived.values()) / elapsed:,.0f} letters a second"
    ]
