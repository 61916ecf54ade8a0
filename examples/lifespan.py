"""Open what handlers need with the App, and close it after the last handler: lifespan, on_start, on_stop."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from warren.sdk import App, Command


class Charge(Command, queue="charges"):
    order_id: int


class Pool:
    """Stands for a pool of database connections."""

    async def execute(self, text: str) -> None:
        print("database:", text)

    async def close(self) -> None:
        print("pool closed")


@asynccontextmanager
async def lifespan(app: App) -> AsyncGenerator[Pool, None]:
    pool = Pool()
    try:
        yield pool
    finally:
        await pool.close()


app = App("memory://", lifespan=lifespan)
charged = asyncio.Event()


@app.handle(Charge)
async def charge(command: Charge, pool: Pool) -> None:
    await pool.execute(f"charge {command.order_id}")
    charged.set()


@app.on_start
async def catch_up() -> None:
    await app.publish(Charge(order_id=42))
    print("published before the first consumer runs")


@app.on_stop
def say_goodbye() -> None:
    print("all handlers have ended")


async def main() -> None:
    async with app:
        await charged.wait()


if __name__ == "__main__":
    asyncio.run(main())
