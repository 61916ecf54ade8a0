"""Client of a load: fills queues, takes messages without acknowledging them, and sends operators' requests."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pamqp import commands

from tests.support.frames import (
    BASIC_ACK,
    BASIC_DELIVER,
    BASIC_NACK,
    QUEUE_DECLARE_OK,
    method,
    publish_frames,
)
from tests.support.raw_client import RawClient, content, encoded, made

BATCH = 1_000
"""Messages, or methods with a reply, that are sent in a row before replies are read."""
POLL_SECONDS = 0.1
"""Time between two looks at a queue's length."""


class LoadClient(RawClient):
    """Connection with channel 1 open, with methods for many messages, queues and bindings at a time."""

    def __init__(self, url: str) -> None:
        super().__init__(url, timeout=600.0)
        self.url = url
        self.connect().open()

    def fill(
        self,
        count: int,
        exchange: str,
        key: str,
        *,
        body: bytes = b"x" * 16,
        properties: Iterable[commands.Basic.Properties] = (),
    ) -> None:
        """Publish persistent messages in confirm mode, on a channel of its own, and wait until all are confirmed.

        :param properties: the properties of the messages, which take turns; without them they are persistent only
        """
        self.open(2)
        self.select_confirms(2)
        given = list(properties)
        opening = encoded(made(commands.Basic.Publish, exchange=exchange, routing_key=key), 2)
        kinds = [opening + content(body, each, channel=2) for each in given] or [
            publish_frames(2, exchange, key, body, persistent=True)
        ]
        size = max(1, min(BATCH, 4 * 1024 * 1024 // max(map(len, kinds))))
        settled = 0
        for start in range(0, count, size):
            end = min(start + size, count)
            self.send_bytes(b"".join(kinds[number % len(kinds)] for number in range(start, end)))
            while self.has_input() or settled < start - 20 * size:
                settled = self._confirmed()
        while settled < count:
            settled = self._confirmed()
        self.call(commands.Channel.Close(200, "", 0, 0), 2, commands.Channel.CloseOk)

    def _confirmed(self) -> int:
        arguments = self.expect_frame(BASIC_ACK).arguments
        return int(struct.unpack_from(">Q", arguments)[0])

    def hold(self, queue: str, count: int) -> None:
        """Consume messages of one size, and leave them unacknowledged."""
        self.consume(queue)
        self.discard(count)

    def discard(self, count: int) -> None:
        """Read deliveries of one size."""
        carrier, head = self.expect_frame(BASIC_DELIVER), self.read_frame()
        body: int = struct.unpack_from(">Q", head.payload, 4)[0]
        size = len(carrier.payload) + len(head.payload) + 8 * 2
        frames = -(-body // (self.frame_max - 8))
        left = body + 8 * frames + (size + body + 8 * frames) * (count - 1)
        while left:
            left -= len(self.read_bytes(min(left, 65536)))

    def nack(self, tag: int, *, requeue: bool) -> None:
        """Reject all messages up to a delivery tag; 0 is all."""
        self.send_bytes(method(1, BASIC_NACK, struct.pack(">QB", tag, 1 | requeue << 1)))

    def call_all(self, requests: Iterable[bytes], reply: tuple[int, int]) -> None:
        """Send methods, `BATCH` at a time, and read the reply of each."""
        batch: list[bytes] = []
        for request in requests:
            batch.append(request)
            if len(batch) == BATCH:
                self._call_batch(batch, reply)
                batch = []
        self._call_batch(batch, reply)

    def _call_batch(self, batch: list[bytes], reply: tuple[int, int]) -> None:
        self.send_bytes(b"".join(batch))
        for _ in batch:
            self.expect_frame(reply)

    def declare_queues(self, count: int, **fields: object) -> None:
        """Declare the queues `queue-0`, `queue-1` and so on, and wait for all replies."""
        self.call_all(
            (
                encoded(made(commands.Queue.Declare, queue=f"queue-{number}", **fields))
                for number in range(count)
            ),
            QUEUE_DECLARE_OK,
        )

    def ready(self, queue: str) -> int:
        """Return how many messages of a queue are ready."""
        return self.declare_queue(queue, passive=True)[1]

    def wait_ready(self, queue: str, count: int) -> None:
        """Wait until a queue has this many ready messages."""
        while self.ready(queue) != count:
            time.sleep(POLL_SECONDS)


class Control:
    """Operator's requests to the broker's control socket."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, verb: str, **arguments: object) -> Any:
        """Send a request, and return its result."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(600.0)
            connection.connect(str(self.path))
            connection.sendall(json.dumps({"verb": verb, "arguments": arguments}).encode() + b"\n")
            with connection.makefile("rb") as lines:
                answer = json.loads(lines.readline())
        if "result" not in answer:
            raise RuntimeError(f"{verb}: {answer}")
        return answer["result"]

    def make_queues(self, count: int, vhost: str = "/", source: str = "amq.topic") -> None:
        """Make the durable queues `queue-0`, `queue-1` and so on, each with a binding, by one import of definitions."""
        names = [f"queue-{number}" for number in range(count)]
        queues = [
            {"name": name, "vhost": vhost, "durable": True, "auto_delete": False, "arguments": {}}
            for name in names
        ]
        self.import_definitions(queues, [binding(source, name, name, vhost) for name in names])

    def import_definitions(self, queues: list[dict[str, Any]], bindings: list[dict[str, Any]]) -> None:
        """Import definitions of queues and bindings."""
        self("import_definitions", definitions={"queues": queues, "bindings": bindings})


def binding(source: str, queue: str, key: str, vhost: str = "/") -> dict[str, Any]:
    """Return the definition of a binding."""
    return {
        "source": source,
        "vhost": vhost,
        "destination": queue,
        "destination_type": "queue",
        "routing_key": key,
        "arguments": {},
    }
