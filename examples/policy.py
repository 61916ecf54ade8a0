"""Policies: a running queue gets a length limit and a dead letter exchange, and loses them again."""

import asyncio
import sys
from tempfile import TemporaryDirectory

import aio_pika

from warren.broker import Broker


async def ctl(data_dir: str, *words: str) -> None:
    """Run `warren ctl` with these words."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "warren.cli.ctl", "--data-dir", data_dir, "--silent", *words
    )
    assert await process.wait() == 0


async def main(data_dir: str) -> None:
    async with Broker(data_dir=data_dir) as broker:
        connection = await aio_pika.connect(broker.url)
        async with connection, await connection.channel() as channel:
            await channel.declare_queue("orders", durable=True)
            overflow = await channel.declare_queue("overflow", durable=True)
            await overflow.bind("amq.fanout")
            for number in range(5):
                await channel.default_exchange.publish(aio_pika.Message(b"order %d" % number), "orders")

            limit = '{"max-length": 3, "dead-letter-exchange": "amq.fanout"}'
            await ctl(data_dir, "set_policy", "short", "^orders$", limit, "--apply-to", "queues")
            await ctl(data_dir, "list_queues", "name", "messages", "policy")
            await ctl(data_dir, "clear_policy", "short")
            await channel.default_exchange.publish(aio_pika.Message(b"order 5"), "orders")
            await ctl(data_dir, "list_queues", "name", "messages", "policy")


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        asyncio.run(main(folder))
