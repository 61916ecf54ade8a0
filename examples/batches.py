"""Batch handling: store many rows with one insert, and settle each message by itself."""

import asyncio

from warren.sdk import App, Command, DeadLetter


class Measured(Command, queue="measures"):
    sensor: str
    celsius: float


app = App()


@app.handle.batch(Measured, size=100, within="10s")
async def store(rows: list[Measured]) -> list[DeadLetter | None]:
    print(f"one insert: {len(rows)} rows")
    return [DeadLetter("no such temperature") if row.celsius < -273.15 else None for row in rows]


async def main() -> None:
    async with app:
        values = [20.0] * 99 + [-300.0]
        await app.publish_many(Measured(sensor="roof", celsius=value) for value in values)
        dead = await app.get("measures.dead", timeout=60)
        if dead is not None:
            print("dead:", dead.read(Measured).celsius, dead.headers["warren-dead-error"])
            await dead.ack()


if __name__ == "__main__":
    asyncio.run(main())
