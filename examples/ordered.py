"""Per-key ordering: the steps of one order are handled one after the other, different orders concurrently."""

import asyncio

from warren.sdk import App, Command


class Step(Command, queue="steps"):
    order_id: str
    name: str


app = App()
done: dict[str, list[str]] = {"42": [], "43": []}
finished = asyncio.Event()


@app.handle(Step, concurrency=8, ordered_by=lambda step: step.order_id)
async def take(step: Step) -> None:
    await asyncio.sleep(0.01 if step.name == "place" else 0)
    done[step.order_id].append(step.name)
    if all(len(names) == 3 for names in done.values()):
        finished.set()


async def main() -> None:
    async with app:
        for name in ("place", "pay", "ship"):
            await app.publish_many(Step(order_id=order_id, name=name) for order_id in done)
        await finished.wait()
    for order_id, names in done.items():
        print(f"order {order_id}:", ", ".join(names))


if __name__ == "__main__":
    asyncio.run(main())
