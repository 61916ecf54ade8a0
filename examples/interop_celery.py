"""Exchange tasks with Celery workers and publishers on the same broker, in Celery's message protocol 2.

The broker runs in this process unless AMQP_URL names another.
"""

import asyncio
from typing import Annotated, Any, NamedTuple
from uuid import uuid4

from warren.sdk import App, DeadLetter, Header


class TaskBody(NamedTuple):
    """The body of a Celery task: a JSON array of three."""

    args: list[Any]
    kwargs: dict[str, Any]
    embed: dict[str, Any]


app = App()
charged = asyncio.Event()


async def send_task(name: str, *args: object, queue: str = "celery", **kwargs: object) -> str:
    """Publish a task for the Celery workers of a queue, as Celery's `send_task` does; return the task's id."""
    task_id = str(uuid4())
    headers = {"lang": "py", "task": name, "id": task_id}
    await app.publish(TaskBody([*args], kwargs, {}), key=queue, message_id=task_id, headers=headers)
    return task_id


@app.handle(TaskBody, queue="charges")
async def run_task(body: TaskBody, task: Annotated[str, Header()]) -> None:
    if task != "shop.charge":
        raise DeadLetter(f"no task {task} here")
    order_id, cents = body.args
    print(f"{task}: order {order_id}, {cents} cents")
    charged.set()


async def main() -> None:
    async with app:
        await send_task("shop.charge", "42", 990, queue="charges")
        await charged.wait()


if __name__ == "__main__":
    asyncio.run(main())
