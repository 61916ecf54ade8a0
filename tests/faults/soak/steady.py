"""An hour of mixed work on one broker: nothing confirmed is lost, and memory, descriptors and disk space stay level.

Each round publishes orders with confirms, acknowledges some and rejects others to a dead letter queue, lets messages
expire, appends to a stream with retention, makes and deletes queues, bindings and connections, and cuts one
connection. Between rounds nothing is in any queue.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from aiormq.abc import FieldTable

from tests.faults.soak.load import processor_seconds
from tests.support.broker_process import BrokerProcess
from tests.support.polling import eventually
from tests.support.proxy import Proxy

SECONDS = 3600
EACH = 200
PAUSE = 1.0
"""Seconds of rest after each round, so that the soak can run beside other work."""
WARM = 0.2
"""Share of the time that the first samples take, with which the last ones are compared."""
GROWTH = 0.10
"""Allowed growth of the resident memory, beside `FRAGMENTS`."""
FRAGMENTS = 8 * 1024 * 1024
STREAM_LIMIT = 4_000_000
FOLDER_LIMIT = 256 * 1024 * 1024


@dataclass
class Sample:
    """The broker's resources when all queues are empty."""

    at: float
    memory: int
    descriptors: int
    folder: int


def soak(share: float, random: Random, folder: Path) -> list[str]:
    with BrokerProcess(folder / "broker") as broker:
        figures = asyncio.run(_Load(broker, random).run(SECONDS * share))
        assert broker.stop() == 0, "the broker did not stop cleanly"
    return figures


class _Load:
    def __init__(self, broker: BrokerProcess, random: Random) -> None:
        self._broker = broker
        self._random = random
        self._open: set[str] = set()
        """Numbers of the orders that are confirmed and have not come out yet."""
        self._published = 0
        self._again = 0
        """Orders that came more than once."""
        self._samples: list[Sample] = []
        self._processor = 0.0

    async def run(self, seconds: float) -> list[str]:
        connection = await aio_pika.connect(self._broker.url)
        async with connection:
            channel = await connection.channel()
            await self._declare(channel)
            started = time.monotonic()
            rounds = 0
            while not rounds or time.monotonic() - started < seconds:
                await self._round(channel, rounds)
                rounds += 1
                self._samples.append(self._sample(time.monotonic() - started))
                await asyncio.sleep(PAUSE)
        self._processor = processor_seconds(self._broker.pid)
        return self._judge(rounds)

    async def _declare(self, channel: AbstractChannel) -> None:
        await channel.set_qos(EACH)
        dead: FieldTable = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "soak.dead"}
        queues: tuple[tuple[str, FieldTable], ...] = (
            ("soak.orders", dead),
            ("soak.expiring", {**dead, "x-message-ttl": 20}),
            ("soak.dead", {}),
            ("soak.stream", {"x-queue-type": "stream", "x-max-length-bytes": STREAM_LIMIT}),
        )
        for name, arguments in queues:
            queue = await channel.declare_queue(name, durable=True, arguments=arguments)
            if name == "soak.orders":
                await queue.consume(self._settle)
            elif name == "soak.dead":
                await queue.consume(self._finish)

    async def _settle(self, message: AbstractIncomingMessage) -> None:
        if self._random.random() < 0.2:
            await message.reject(requeue=False)
        else:
            await self._finish(message)

    async def _finish(self, message: AbstractIncomingMessage) -> None:
        assert message.message_id is not None
        await message.ack()
        if message.message_id in self._open:
            self._open.remove(message.message_id)
        else:
            self._again += 1

    async def _round(self, channel: AbstractChannel, number: int) -> None:
        random = self._random
        publishes = []
        for key, count in (("soak.orders", EACH), ("soak.expiring", EACH // 4), ("soak.stream", EACH)):
            for _ in range(count):
                identity = str(self._published)
                self._published += 1
                if key != "soak.stream":
                    self._open.add(identity)
                body = random.randbytes(random.choice((40, 400, 4000)))
                message = aio_pika.Message(
                    body,
                    message_id=identity,
                    headers={"round": number, "shop": identity[-2:]},
                    delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
                )
                publishes.append(channel.default_exchange.publish(message, key))
        await asyncio.gather(*publishes)
        await self._topology(channel, number)
        await self._connections()
        await eventually(lambda: not self._open, f"all orders of round {number} came out", seconds=300)

    async def _topology(self, channel: AbstractChannel, number: int) -> None:
        """Make an exchange and queues with bindings, publish to them, and delete all of it."""
        exchange = await channel.declare_exchange(f"soak.topic.{number}", "topic", durable=True)
        queues = []
        for index in range(5):
            queue = await channel.declare_queue(f"soak.temporary.{number}.{index}", durable=True)
            await queue.bind(exchange, f"*.{index}.#")
            queues.append(queue)
        await asyncio.gather(
            *(exchange.publish(aio_pika.Message(b"x" * 500), f"a.{index}.b") for index in range(5))
        )
        await queues[0].purge()
        for queue in queues:
            await queue.delete(if_unused=False, if_empty=False)
        await exchange.delete()

    async def _connections(self) -> None:
        """Connect twice: close one connection, and cut the other, while each holds a message of its own queue."""
        async with Proxy(self._broker.url) as proxy:
            for cut in (False, True):
                connection = await aio_pika.connect(proxy.url)
                channel = await connection.channel()
                queue = await channel.declare_queue("", exclusive=True)
                for _ in range(10):
                    await channel.default_exchange.publish(aio_pika.Message(b"x" * 1000), queue.name)
                await queue.get()
                if cut:
                    proxy.cut()
                else:
                    await connection.close()

    def _sample(self, at: float) -> Sample:
        pid = self._broker.pid
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        folder = sum(path.stat().st_size for path in self._broker.data_dir.rglob("*") if path.is_file())
        return Sample(at, pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir(f"/proc/{pid}/fd")), folder)

    def _judge(self, rounds: int) -> list[str]:
        """Compare the first samples with the last ones, and return the figures.

        :raises AssertionError: a message came twice, or a resource has grown.
        """
        samples = self._samples
        share = max(1, round(len(samples) * WARM))
        first, last = samples[:share], samples[-share:]
        before, after = (max(sample.memory for sample in part) for part in (first, last))
        assert self._again == 0, f"{self._again} orders came twice"
        assert after <= before * (1 + GROWTH) + FRAGMENTS, (
            f"memory: {before} bytes at first, {after} at the end"
        )
        opened, left = (max(sample.descriptors for sample in part) for part in (first, last))
        assert left <= opened + 2, f"descriptors: {opened} at first, {left} at the end"
        largest = max(sample.folder for sample in samples)
        assert largest <= FOLDER_LIMIT, f"the data folder has grown to {largest} bytes"
        marks = [samples[round(at * (len(samples) - 1) / 6)] for at in range(7)]
        return [
            f"{rounds} rounds, {self._published} messages, none lost, none twice",
            f"processor time of the broker: {self._processor:.0f} s in {samples[-1].at:.0f} s",
            f"memory: at most {before / 1e6:.1f} MB in the first {share} rounds, {after / 1e6:.1f} in the last",
            f"descriptors: {opened} and {left}; data folder at most {largest / 1e6:.0f} MB",
            *(
                f"after {mark.at:.0f} s: {mark.memory / 1e6:.1f} MB, {mark.descriptors} descriptors, "
                f"{mark.folder / 1e6:.0f} MB on disk"
                for mark in marks
            ),
        ]
