"""What is in the hands of consumers: found when its memory may matter, since a queue keeps no list of it."""

from __future__ import annotations

from mypy_extensions import i64

from warren.broker.model.message import Message
from warren.broker.model.queue.queue import Queue


def unacknowledged_messages(queue: Queue) -> list[Message]:
    """What the channels of a queue's consumers have of it."""
    seen: dict[int, bool] = {}
    found: list[Message] = []
    for consumer in queue.consumers:
        held = consumer.unacknowledged()
        if id(held) not in seen:
            seen[id(held)] = True
            for message in held.values():
                holder = message.consumer
                if holder is not None and holder.queue is queue:
                    found.append(message)
    return found


def page_out_unacknowledged(queue: Queue, limit: i64) -> i64:
    """Have contents of unacknowledged messages leave memory, at most so many; how many it was."""
    shelf = queue.pager
    if shelf is None:
        return 0
    done: i64 = 0
    for message in unacknowledged_messages(queue):
        if done >= limit:
            break
        if message.content:
            if not message.stored:
                shelf.write(message)
                done += 1
            elif shelf.is_on_disk(message):
                message.content = b""
                done += 1
    return done
