"""Topic exchange: `*` matches one word of the routing key, `#` any number of words.

The textbook version takes the patterns for regular expressions (`lazy*`), or shows `#` alone, which makes the
exchange a fanout; a key that no pattern matches is dropped. Here one animal matches the bindings of two
queues, and one matches none.
"""

import asyncio

from warren.sdk import App, Event, Unroutable

app = App()
seen: list[str] = []
done = asyncio.Event()


class Animal(Event, exchange="literature.animals", mandatory=True):
    name: str


@app.handle(Animal, queue="literature.animals.orange", keys=["*.orange.*"])
async def orange(animal: Animal) -> None:
    note(f"orange: {animal.name}")


@app.handle(Animal, queue="literature.animals.rabbits", keys=["*.*.rabbit", "lazy.#"])
async def rabbits(animal: Animal) -> None:
    note(f"rabbits and lazy ones: {animal.name}")


def note(line: str) -> None:
    seen.append(line)
    if len(seen) == 4:
        done.set()


async def main() -> None:
    async with app:
        await app.publish(Animal(name="rabbit"), key="quick.orange.rabbit")
        await app.publish(Animal(name="sloth"), key="lazy.brown.old.sloth")
        await app.publish(
            Animal(name="pink rabbit"), key="lazy.pink.rabbit"
        )  # matches two bindings of the queue, delivered once
        try:
            await app.publish(Animal(name="fox"), key="quick.brown.fox")
        except Unroutable:
            print("no binding matches the fox")
        await done.wait()
    print(*sorted(seen), sep="\n")


if __name__ == "__main__":
    asyncio.run(main())
