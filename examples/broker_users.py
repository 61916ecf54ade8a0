"""A broker in this process with a user that may only read queues of billing."""

import asyncio

import aio_pika
from aio_pika.exceptions import ChannelClosed

from warren.broker import Broker


async def main() -> None:
    async with Broker() as broker:
        broker.access.users.add("billing", "secret", tags=["monitoring"])
        broker.access.permissions.set("billing", "/", configure="", write="", read=r"^billing\.")
        connection = await aio_pika.connect(broker.url.replace("guest:guest", "billing:secret"))
        async with connection, await connection.channel() as channel:
            try:
                await channel.declare_queue("billing.invoices")
            except ChannelClosed as refusal:
                print(refusal)


if __name__ == "__main__":
    asyncio.run(main())
