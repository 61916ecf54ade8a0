"""Topics: `*` stands for one word of the routing key, `#` for any number of them.

The original takes the patterns for regular expressions of the text (`lazy*`), or shows `#` alone and with
it a fanout; a key that no pattern matches is dropped. Here the words are words, one animal has two queues
that want it, and one has none.
"""

import asyncio

from warren.sdk import App, Event, Unroutable

app = App()
seen: list[str] = []
done = asyncio.Event()


class Animal(Event, exchange="literature.animals"):
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
        )  # two bindings of one queue: once
        try:
            await app.publish(Animal(name="fox"), key="quick.brown.fox")
        except Unroutable:
            print("nobody wants the fox")
        await done.wait()
    print(*sorted(seen), sep="\n")


if __name__ == "__main__":
    asyncio.run(main())
