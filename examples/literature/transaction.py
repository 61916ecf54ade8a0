"""Transaction: with a rollback, and in a loop.

The original selects transaction mode once and forgets that everything on the channel belongs to it from
then on; it rolls back in `except` and goes on with a message half done; and it publishes one message a
transaction in a loop, which waits for the disk each time. A commit whose answer is lost is tried again,
and doubles what it did. Here the block is the transaction, a commit whose outcome is not known raises
`TransactionUnknown`, and for single messages a confirm does the same for a fraction of the cost.
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
