"""Encryption: the broker and its disk hold ciphertext only, and messages that are not encrypted are rejected.

Run it: python examples/encryption.py   (AMQP_URL chooses a broker; without it nothing else is needed)
"""

import asyncio
import secrets

from warren.patterns import Encryption
from warren.sdk import App, Command, Delivery, Queue


class Pay(Command, queue="payments"):
    account: str
    amount: int


# In production from a secret store, the same in every process.
keys = {"2026-05": secrets.token_bytes(32), "2026-11": secrets.token_bytes(32)}
app = App()
app.include(Encryption(keys, current="2026-11"))


@app.handle(Pay)
async def pay(command: Pay, delivery: Delivery) -> None:
    in_transit = delivery.original.body
    print("in transit:", "readable" if b"account" in in_transit else "ciphertext")
    print("decrypted:", command)


async def main() -> None:
    async with app:
        await app.publish(Pay(account="42", amount=100))

        outsider = App(app.url)  # has no keys
        outsider.declare(Queue("payments"))
        rejected = asyncio.Event()

        @outsider.handle(bytes, queue="payments.dead")
        async def dead(body: bytes, delivery: Delivery) -> None:
            print("rejected:", delivery.headers["warren-dead-error"])
            rejected.set()

        async with outsider:
            await outsider.publish(Pay(account="666", amount=100))
            await rejected.wait()


if __name__ == "__main__":
    asyncio.run(main())
