"""Publishers and consumers of a rehearsal: they change from source to target when they are told to."""

from __future__ import annotations

import contextlib
import select
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from warren.core.blocking_connection import BlockingConnection, ClosedByBroker
from warren.wire import field_tables, methods, properties
from warren.wire.amqp_url import parse_url
from warren.wire.delivery_scanner import DeliveryScanner, decode_content_header, decode_deliver

BODY = struct.Struct(">qq")
"""Body of a message: its number in its queue, and the time in milliseconds at which it was published."""
BATCH = 100
"""Messages that a publisher sends before it waits for their confirms."""
RETRY_SECONDS = 0.1
LOST = (OSError, ClosedByBroker)


class Link:
    """A connection with one channel, in confirm mode or with consumers."""

    def __init__(self, url: str, *, confirms: bool) -> None:
        self._connection = BlockingConnection(parse_url(url), timeout=60.0)
        self.unconfirmed: set[int] = set()
        """Numbers of the publishes that the broker has not confirmed."""
        self._published = 0
        self.on_message: Callable[[bytes, bytes, bytes], None] = lambda method, header, body: None
        if confirms:
            try:
                self._connection.call("confirm.select", False)
            except LOST:
                self.abort()
                raise
        self._scanner = DeliveryScanner(self)
        self._scanner.limit = self._connection.frame_max
        self._scanner.open(1, self)

    def call(self, name: str, *values: methods.Argument) -> methods.Arguments:
        return self._connection.call(name, *values)

    def send(self, data: bytes) -> None:
        self._connection.socket.sendall(data)

    def publish(self, messages: Sequence[bytes]) -> None:
        """Publish messages, of which each is encoded as its frames, and wait for their confirms."""
        first = self._published + 1
        self._published += len(messages)
        self.unconfirmed.update(range(first, self._published + 1))
        self.send(b"".join(messages))
        while self.unconfirmed:
            self.receive(60.0)

    def feed(self) -> None:
        """Take over what `call` has received beyond its reply."""
        data, self._connection.buffer = self._connection.buffer, b""
        self._take(data)

    def receive(self, seconds: float) -> bool:
        """Process what has arrived; return False if nothing does within some seconds."""
        if not select.select([self._connection.socket], [], [], seconds)[0]:
            return False
        data = self._connection.socket.recv(1 << 17)
        if not data:
            raise ConnectionError("the broker has closed the connection")
        self._take(data)
        return True

    def _take(self, data: bytes) -> None:
        frames = self._scanner.feed(data)
        while frames:
            size = 8 + int.from_bytes(frames[3:7], "big")
            self._connection.raise_if_closed(frames[:size])
            frames = frames[size:]

    def message(self, method: bytes, header: bytes, body: bytes) -> None:
        self.on_message(method, header, body)

    def confirm(self, sequence: int, multiple: bool, ack: bool) -> None:
        assert ack, "the broker refused a message"
        if multiple:
            self.unconfirmed = {number for number in self.unconfirmed if number > sequence}
        else:
            self.unconfirmed.discard(sequence)

    def blocked(self, reason: str | None) -> None:
        """Ignore it."""

    def close(self) -> None:
        with contextlib.suppress(*LOST):
            self._connection.close()

    def abort(self) -> None:
        self._connection.socket.close()


class Client(threading.Thread):
    """A client with a first broker and, after `leave` and `enter`, a second one. An error is kept in `error`."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.leaves = threading.Event()
        self.has_left = threading.Event()
        self.enters = threading.Event()
        self.ends = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self.error = error
            self.has_left.set()
            raise

    def work(self) -> None:
        raise NotImplementedError

    def connect(self, url: str, *, confirms: bool) -> Link:
        """Connect, as soon as the broker is there again."""
        while True:
            try:
                return Link(url, confirms=confirms)
            except LOST:
                if self.ends.wait(RETRY_SECONDS):
                    raise


class Publisher(Client):
    """Publisher to some queues, in turns, with confirms.

    :param counts: number of messages of each queue.
    :param backlog: messages of each queue that are published as fast as possible, before traffic begins.
    :param reserve: messages of each queue that are published to the target.
    :param pace: seconds between two batches of the traffic.
    """

    def __init__(
        self, urls: Sequence[str], counts: Mapping[str, int], backlog: int, reserve: int, pace: float
    ) -> None:
        super().__init__("publisher")
        self.has_backlog = threading.Event()
        self.starts_traffic = threading.Event()
        self.republished: dict[str, set[int]] = {queue: set() for queue in counts}
        """Numbers that were published twice, as the broker was killed before it confirmed them."""
        self.next = dict.fromkeys(counts, 0)
        self._urls = urls
        self._counts = counts
        self._backlog = backlog
        self._reserve = reserve
        self._pace = pace
        self._frames = {queue: _frames_around_body(queue) for queue in counts}

    def work(self) -> None:
        link = self._publish(self.connect(self._urls[0], confirms=True), self._urls[0], self._backlog, 0.0)
        self.has_backlog.set()
        self.starts_traffic.wait()
        most = {queue: count - self._reserve for queue, count in self._counts.items()}
        while not self.leaves.is_set():
            link = self._publish_batch(link, self._urls[0], most)
            self.leaves.wait(self._pace)
        link.close()
        self.has_left.set()
        self.enters.wait()
        link = self.connect(self._urls[1], confirms=True)
        self._publish(link, self._urls[1], max(self._counts.values()), 0.0).close()

    def _publish(self, link: Link, url: str, until: int, pace: float) -> Link:
        most = {queue: min(until, count) for queue, count in self._counts.items()}
        while any(self.next[queue] < most[queue] for queue in most):
            link = self._publish_batch(link, url, most)
        return link

    def _publish_batch(self, link: Link, url: str, most: Mapping[str, int]) -> Link:
        """Publish the next messages and wait for their confirms, over new connections if one is lost."""
        share = max(1, BATCH // len(most))
        batch = [
            (queue, number)
            for queue in most
            for number in range(self.next[queue], min(self.next[queue] + share, most[queue]))
        ]
        for queue, number in batch:
            self.next[queue] = number + 1
        while True:
            try:
                link.publish([self._encoded(queue, number) for queue, number in batch])
                return link
            except LOST:
                link.abort()
                for queue, number in batch:
                    self.republished[queue].add(number)
                link = self.connect(url, confirms=True)

    def _encoded(self, queue: str, number: int) -> bytes:
        before, after = self._frames[queue]
        return before + BODY.pack(number, int(time.time() * 1000)) + after


class Arrivals:
    """Messages that have arrived from one queue, and the faults among them.

    Messages of a queue with a TTL come from two queues of the source: from that queue, or, if they expired at the
    source, from the one that they were dead-lettered to. The order is that of each of the two.

    :param count: number of messages that are expected.
    :param delay_ms: least milliseconds between publish and arrival.
    """

    def __init__(self, queue: str, count: int, delay_ms: int = 0) -> None:
        self.queue = queue
        self.count = count
        self.arrived = 0
        self.last: dict[object, int] = {}
        """Highest number that has come from each queue of the source; None for messages that were not moved."""
        self.redelivered = 0
        self.recognised = 0
        """Copies that have the migration headers of a message which came before."""
        self.expired = 0
        """Copies that the source dead-lettered before the tool could acknowledge what the target had confirmed."""
        self.unexplained: dict[int, int] = {}
        """Numbers of further copies; the publishers may have made them."""
        self.faults: list[str] = []
        self._delay_ms = delay_ms
        self._seen = bytearray(count)
        self._moved: dict[int, tuple[object, int]] = {}
        """Queue of the source and sequence there of each message, by number."""

    @property
    def is_complete(self) -> bool:
        return self.arrived == self.count

    def add(self, method: bytes, header: bytes, body: bytes) -> int:
        """Add a delivery; return its delivery tag."""
        fields = decode_deliver(method)
        number, published = BODY.unpack(body)
        headers = field_tables.decode(decode_content_header(header).table)
        sequence, origin = headers.get("warren-migration-sequence", 0), headers.get("warren-migration-queue")
        assert isinstance(sequence, int)
        if self._seen[number]:
            if sequence and (origin, sequence) == self._moved[number]:
                self.recognised += 1
            elif self._delay_ms and origin is not None and origin != self._moved[number][0]:
                self.expired += 1
            elif fields.redelivered:
                self.redelivered += 1
            else:
                self.unexplained[number] = self.unexplained.get(number, 0) + 1
            return fields.delivery_tag
        self._seen[number] = 1
        self._moved[number] = (origin, sequence)
        self.arrived += 1
        last = self.last.get(origin, -1)
        if number < last:
            self.faults.append(f"{self.queue}: {number} came after {last}")
        self.last[origin] = max(last, number)
        early = published + self._delay_ms - int(time.time() * 1000)
        if self._delay_ms and early > 1:
            self.faults.append(f"{self.queue}: {number} came {early} ms too early")
        return fields.delivery_tag


class Consumer(Client):
    """Consumer of all queues, which acknowledges what it has recorded.

    :param enough: messages after which it stops to consume from the source.
    """

    def __init__(self, urls: Sequence[str], arrivals: Mapping[str, Arrivals], enough: int) -> None:
        super().__init__("consumer")
        self.arrivals = arrivals
        self._urls = urls
        self._enough = enough
        self._last_tag = 0

    def work(self) -> None:
        self._consume(self._urls[0], lambda: self.leaves.is_set() or self.total >= self._enough)
        self.has_left.set()
        self.enters.wait()
        self._consume(self._urls[1], self.ends.is_set)

    @property
    def total(self) -> int:
        return sum(each.arrived for each in self.arrivals.values())

    def _consume(self, url: str, is_done: Callable[[], bool]) -> None:
        while not is_done():
            try:
                self._consume_once(url, is_done)
            except LOST:
                self.ends.wait(RETRY_SECONDS)

    def _consume_once(self, url: str, is_done: Callable[[], bool]) -> None:
        link = Link(url, confirms=False)
        try:
            self._consume_over(link, is_done)
        except LOST:
            link.abort()
            raise

    def _consume_over(self, link: Link, is_done: Callable[[], bool]) -> None:
        self._last_tag = 0
        by_tag = {queue.encode(): arrivals for queue, arrivals in self.arrivals.items()}

        def receive(method: bytes, header: bytes, body: bytes) -> None:
            tag = method[5 : 5 + method[4]]
            self._last_tag = by_tag[tag].add(method, header, body)

        link.on_message = receive
        link.send(methods.frame(1, "basic.qos", 0, 200, False))
        for queue in by_tag:
            # Without a reply, which deliveries of other queues could precede.
            link.send(methods.frame(1, "basic.consume", 0, queue, queue, False, False, False, True, b""))
        link.feed()
        acknowledged = 0
        while not is_done():
            more = link.receive(0.2)
            if self._last_tag - acknowledged >= 100 or (not more and self._last_tag > acknowledged):
                acknowledged = self._last_tag
                link.send(methods.frame(1, "basic.ack", 0 + acknowledged, True))
        for queue in by_tag:
            link.send(methods.frame(1, "basic.cancel", queue, True))
        while link.receive(0.5):
            pass
        if self._last_tag:
            link.send(methods.frame(1, "basic.ack", self._last_tag, True))
        link.close()


def _frames_around_body(queue: str) -> tuple[bytes, bytes]:
    """Return the frames of a persistent publish to a queue, before and after its body."""
    header = properties.encode({"delivery_mode": 2, "headers": field_tables.decode_fields(b"")}, BODY.size)
    frame = struct.Struct(">BHI")
    parts = (
        methods.frame(1, "basic.publish", 0, b"", queue.encode(), False, False),
        frame.pack(2, 1, len(header)),
        header,
        b"\xce",
        frame.pack(3, 1, BODY.size),
    )
    return b"".join(parts), b"\xce"
