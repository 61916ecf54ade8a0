"""Plain handler: a function with blocking calls runs in a thread, with its dependencies."""

import asyncio
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from warren.sdk import App, Depends, Request


class AddStock(Request[int], queue="stock"):
    item: str
    count: int


app = App(threads=8)
folder = tempfile.TemporaryDirectory()


def session() -> Iterator[sqlite3.Connection]:
    """Open a connection in the handler's thread, and commit if the handler succeeded."""
    connection = sqlite3.connect(Path(folder.name) / "stock.sqlite")
    with connection:
        yield connection
    connection.close()


@app.handle(AddStock)
def add_stock(request: AddStock, db: Annotated[sqlite3.Connection, Depends(session)]) -> int:
    db.execute("CREATE TABLE IF NOT EXISTS stock (item TEXT, count INTEGER)")
    db.execute("INSERT INTO stock VALUES (?, ?)", (request.item, request.count))
    (total,) = db.execute("SELECT sum(count) FROM stock WHERE item = ?", (request.item,)).fetchone()
    return int(total)


async def main() -> None:
    async with app:
        for count in (3, 4):
            print("lamps:", await app.call(AddStock(item="lamp", count=count)))
    folder.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
