"""Transactions: an error that rolls back, and transactions in a loop.

The textbook version selects transaction mode once and forgets that it applies to everything on the channel
from then on. It rolls back in `except` and continues with a message that is half published. It publishes one
message per transaction in a loop, which waits for the disk each time. It repeats a commit whose answer is
lost, which publishes everything twice. Here the block is the transaction, a commit with an unknown outcome
raises `TransactionUnknown`, and a confirm does the same for single messages at a fraction of the cost.
"""

import asyncio

from warren.patterns import ParkingLot
from warren.sdk import App, Queue

app = App()
app.declare(Queue("literature.credit"), Queue("literature.debit"))


async def count(queue: str) -> int:
    async with ParkingLot(str(app.url), queue) as lot:
        return lot.size


async def main() -> None:
    async with app:
        try:
            async with app.transaction() as transfer:
                await transfer.publish(b"minus 10", key="literature.debit")
                raise ValueError("the other account is closed")
        except ValueError:
            print("rolled back:", await count("literature.debit"), await count("literature.credit"))

        for _ in range(5):
            async with app.transaction() as transfer:  # both, or neither
                await transfer.publish(b"minus 10", key="literature.debit")
                await transfer.publish(b"plus 10", key="literature.credit")
        print("committed:", await count("literature.debit"), await count("literature.credit"))


if __name__ == "__main__":
    asyncio.run(main())
