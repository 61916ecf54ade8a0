"""Messages that arrive while processes are killed: numbered, each with an id, no faster than the kills proceed."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import closing

from tests.support.pika_connection import pika_connection
from warren.sdk import App

TICK = 0.1
"""Seconds between two groups of messages."""
AHEAD = 4.0
"""Minimum seconds in which the messages between two kills arrive."""


def declare(url: str, kind: str, number: int) -> list[str]:
    """Declare new durable queues of a type."""
    names = [f"{kind}.{uuid.uuid4().hex[:8]}" for _ in range(number)]
    with closing(pika_connection(url)) as connection:
        for name in names:
            connection.channel().queue_declare(name, durable=True, arguments={"x-queue-type": kind})
    return names


def held(url: str, queue: str) -> int:
    """Return the number of messages in the queue or stream; it must have no consumer."""
    with closing(pika_connection(url)) as connection:
        return int(connection.channel().queue_declare(queue, passive=True).method.message_count)


def identity(queue: str, number: int) -> str:
    return f"{queue}:{number}"


class Arrivals(threading.Thread):
    """Publisher to queues or streams in turn: the body of message `n` is `n` in digits, and its id contains queue and
    number.

    Each message is confirmed and on disk, because this test is not about losses of the publisher.
    """

    def __init__(self, url: str, queues: Sequence[str], count: int, stages: int) -> None:
        """
        :param count: messages in all
        :param stages: how often `go_on` is called before the last one has arrived
        """
        super().__init__(name="arrivals", daemon=True)
        self.queues = list(queues)
        self.each = count // len(queues)
        self.published = 0
        self._url = url
        self._stages = stages
        self._stage = 0
        self._failed: BaseException | None = None
        self._stopped = False

    @property
    def count(self) -> int:
        """Number of all messages, published or not."""
        return self.each * len(self.queues)

    def go_on(self) -> None:
        """Allow the messages of the next stage."""
        self._stage += 1

    def check(self) -> None:
        """Raise an AssertionError if publishing has failed."""
        assert self._failed is None, f"publishing failed: {self._failed!r}"

    def end(self) -> None:
        """Stop publishing."""
        self._stopped = True
        self.join()

    def run(self) -> None:
        try:
            asyncio.run(self._publish())
        except BaseException as error:
            self._failed = error

    async def _publish(self) -> None:
        per_stage = -(-self.each // (self._stages + 1))
        handful = max(1, round(per_stage * TICK / AHEAD))
        number = 0
        async with App(self._url, declare="never") as app:
            while number < self.each and not self._stopped:
                # Half of the next stage is let in before its kill, so that the kill finds messages that arrive; the other
                # half comes after it, so that there is another batch.
                allowed = min(self.each, round(per_stage * (self._stage + 1.5)), number + handful)
                confirms = []
                for at in range(number, allowed):
                    for queue in self.queues:
                        message_id = identity(queue, at)
                        confirms.append(await app.submit(b"%d" % at, key=queue, message_id=message_id))
                await asyncio.gather(*confirms)
                self.published += len(confirms)
                number = max(number, allowed)
                await asyncio.sleep(TICK)


def wait_for(arrivals: Arrivals, published: int, seconds: float) -> None:
    """Wait until that many messages are published.

    :raises AssertionError: it failed, or has not got that far after so many seconds
    """
    deadline = time.monotonic() + seconds
    while arrivals.published < published:
        arrivals.check()
        assert time.monotonic() < deadline, f"{arrivals.published} of {published} published after {seconds} s"
        time.sleep(0.02)
