"""Claim check: store a large picture outside the broker, and send a reference in its message.

Run it: python examples/claim_check.py   (AMQP_URL chooses a broker; without it nothing else is needed)
"""

import asyncio
import tempfile
from datetime import timedelta
from pathlib import Path

from warren.patterns import ClaimCheck, FolderBlobStore
from warren.sdk import App, Command, Delivery


class Show(Command, queue="pictures"):
    name: str
    pixels: str


folder = Path(tempfile.mkdtemp())
app = App()
app.include(
    ClaimCheck(
        FolderBlobStore(folder),  # S3BlobStore("bucket") for several machines
        threshold_bytes=100_000,  # bytes; smaller bodies are sent in the message
        keep=timedelta(days=30),
    )
)


@app.handle(Show)
async def show(picture: Show, delivery: Delivery) -> None:
    print(f"{picture.name}: {len(picture.pixels)} pixels")
    print(f"through the broker: {len(delivery.original.body)} bytes")
    shown.set()


shown = asyncio.Event()


async def main() -> None:
    async with app:
        await app.publish(Show(name="harbour", pixels="#" * 1_000_000))
        await shown.wait()


if __name__ == "__main__":
    asyncio.run(main())
