"""Reads what waits in a classic queue without taking it: consumes, acknowledges nothing, closes.

The messages are delivered, held unacknowledged while the browse lasts, and go back to their places when its
connection closes (RabbitMQ, "Consumer Acknowledgements": what was not acknowledged is requeued, at its
original position if possible, and marked redelivered). Three things follow from that:

- Prefetch cannot bound memory here: nothing is acknowledged, so a limit below the number of messages would
  stop the deliveries for good. The limit is the number that the passive declare counted; what arrives later
  stays where it is.
- Memory is bounded by the batch instead. The event loop runs only while a batch is being filled; between
  batches nothing is read from the socket, and TCP holds the broker back.
- Two browses at once would share the messages between them, and each would see a part. So the consumer is
  exclusive: a second one waits until the first has closed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import aiormq
from aiormq.abc import AbstractChannel, AbstractConnection, DeliveredMessage
from aiormq.exceptions import (
    AuthenticationError,
    ChannelAccessRefused,
    ChannelLockedResource,
    ChannelNotFoundEntity,
    InvalidFrameError,
    ProbableAuthenticationError,
)
from pamqp.commands import Basic
from yarl import URL

from warren.pipeline.errors import PipelineError

BATCH_MESSAGES = 4096
BATCH_BYTES = 4 * 1024 * 1024
HEARTBEAT = 300
"""Seconds, unless the URL says otherwise. Long, because no heartbeat is sent while Spark digests a batch;
short enough that the messages of an executor whose machine died go back within ten minutes."""
PROBE = 1.0
"""Seconds without a delivery after which the queue is asked whether it holds any more."""
WAIT = 0.1
"""Seconds between two attempts to become the only consumer."""
CLOSE = 5.0
"""Seconds that a closing connection may take; a broker that has stopped does not answer."""
PREFETCH_LIMIT = 65_535
"""basic.qos carries the prefetch in 16 bits; 0 is no limit."""


@dataclass(frozen=True)
class Browse:
    """What to read: a queue of the broker behind a URL.

    :param timeout: seconds without any progress after which reading fails
    :raises PipelineError: if one of them cannot be meant
    """

    url: str = field(repr=False)
    queue: str
    timeout: float = 30.0

    def __post_init__(self) -> None:
        check_url(self.url)
        if not self.queue:
            raise PipelineError("no queue is named")
        if not self.timeout > 0:
            raise PipelineError(f"timeout is {self.timeout:g}: it must be more than 0 seconds")

    def batches(self) -> Iterator[list[DeliveredMessage]]:
        """What waits in the queue now, in the queue's order, in lists of about 4,096 messages or 4 MiB.

        All of it stays there. What expires or is purged after it was counted is left out.

        :raises PipelineError: no broker, wrong password, no such queue, another consumer, a connection that is
            lost on the way, or no progress for `timeout` seconds
        """
        with asyncio.Runner() as runner:
            conversation = Conversation(self)
            try:
                runner.run(conversation.open())
                while batch := runner.run(conversation.fill()):
                    yield batch
            finally:
                runner.run(conversation.close())


class Conversation:
    """One connection that browses one queue."""

    def __init__(self, browse: Browse) -> None:
        self._browse = browse
        self._connection: AbstractConnection | None = None
        self._channel: AbstractChannel | None = None
        self._wanted = 0
        self._received = 0
        self._batch: list[DeliveredMessage] = []
        self._bytes = 0
        self._lost: Exception | None = None
        self._wake = asyncio.Event()

    async def open(self) -> None:
        """Connect, count, and start the deliveries."""
        try:
            async with asyncio.timeout(self._browse.timeout):
                self._connection = await aiormq.connect(with_heartbeat(self._browse.url))
                while True:
                    if await self._start(self._connection):
                        return
                    await asyncio.sleep(WAIT)
        except TimeoutError:
            reason = "the broker does not answer" if self._connection is None else "it has another consumer"
            raise self._error(f"{reason} (waited {self._browse.timeout:g} s)") from None
        except Exception as error:
            raise self._error(explained(error)) from None

    async def _start(self, connection: AbstractConnection) -> bool:
        """Count, then consume; False while somebody else consumes, for then the count is not the whole."""
        channel = await connection.channel(publisher_confirms=False)
        declared = await channel.queue_declare(self._browse.queue, passive=True)
        if declared.consumer_count:
            await channel.close()
            return False
        self._wanted = declared.message_count or 0
        if not self._wanted:
            return True
        await channel.basic_qos(prefetch_count=self._wanted if self._wanted <= PREFETCH_LIMIT else 0)
        channel.on_consumer_cancel_callbacks.add(self._on_cancel)
        try:
            await channel.basic_consume(self._browse.queue, self._on_message, exclusive=True)
        except ChannelAccessRefused as error:
            if "exclusive" not in str(error):
                raise
            return False
        self._channel = channel
        channel.closing.add_done_callback(self._on_closed)
        return True

    async def fill(self) -> list[DeliveredMessage]:
        """The next batch; empty once all that was counted has been read."""
        loop = asyncio.get_running_loop()
        received, moved, empty = self._received, loop.time(), False
        while not self._ready():
            with suppress(TimeoutError):
                async with asyncio.timeout(PROBE):
                    await self._wake.wait()
            if self._lost is not None:
                raise self._error(f"the connection was lost {self._progress()}: {explained(self._lost)}")
            if self._received != received:
                received, moved, empty = self._received, loop.time(), False
            elif loop.time() - moved >= self._browse.timeout:
                raise self._error(f"nothing arrived for {self._browse.timeout:g} s {self._progress()}")
            elif await self._holds_none():
                # Twice, because a declare-ok may overtake deliveries that are on their way.
                if empty:
                    self._wanted = self._received
                empty = True
            else:
                empty = False
        batch, self._batch, self._bytes = self._batch, [], 0
        self._wake.clear()
        return batch

    def _ready(self) -> bool:
        if self._lost is not None:
            return False
        complete = self._received >= self._wanted
        return complete or len(self._batch) >= BATCH_MESSAGES or self._bytes >= BATCH_BYTES

    async def _holds_none(self) -> bool:
        """Whether nothing is left to deliver: what was counted has expired, or was purged, since."""
        assert self._channel is not None
        try:
            async with asyncio.timeout(self._browse.timeout):
                return not (await self._channel.queue_declare(self._browse.queue, passive=True)).message_count
        except TimeoutError:
            raise self._error(f"the broker stopped answering {self._progress()}") from None
        except Exception as error:
            raise self._error(f"{explained(error)} {self._progress()}") from None

    async def close(self) -> None:
        """End the connection: the messages go back. Never raises: a lost connection has given them back."""
        if self._connection is not None:
            with suppress(Exception):
                async with asyncio.timeout(CLOSE):
                    await self._connection.close()

    async def _on_message(self, message: DeliveredMessage) -> None:
        if self._received >= self._wanted:
            return
        self._received += 1
        self._batch.append(message)
        self._bytes += len(message.body)
        if self._ready():
            self._wake.set()

    def _on_cancel(self, _: Basic.Cancel) -> None:
        self._fail(PipelineError("the queue was deleted"))

    def _on_closed(self, closing: asyncio.Future[object]) -> None:
        error = None if closing.cancelled() else closing.exception()
        self._fail(error if isinstance(error, Exception) else ConnectionError("closed"))

    def _fail(self, error: Exception) -> None:
        self._lost = self._lost or error
        self._wake.set()

    def _progress(self) -> str:
        return f"after {self._received} of {self._wanted} messages"

    def _error(self, reason: str) -> PipelineError:
        where = f"queue {self._browse.queue!r} at {redacted(self._browse.url)}"
        return PipelineError(f"cannot read {where}: {reason}")


def explained(error: Exception) -> str:
    """What a failure of the connection or channel means, in one line."""
    match error:
        case ProbableAuthenticationError() | AuthenticationError():
            return "the broker refused the user name or the password"
        case ChannelNotFoundEntity():
            return "there is no such queue; declare it, or check the virtual host and the name"
        case ChannelLockedResource():
            return "the queue is exclusive to another connection"
        case ChannelAccessRefused():
            return f"the user may not read it ({first_line(error)})"
        case InvalidFrameError() if "Connection.OpenOk" in str(error):
            # aiormq reports connection.close in place of open-ok as an unexpected frame, without its text.
            return "the virtual host does not exist, or the user may not enter it"
        case OSError(errno=int(number)) if number > 0:
            return f"the broker cannot be reached: {os.strerror(number)}"
        case _:
            return first_line(error)


def first_line(error: Exception) -> str:
    """The words of an error: aiormq's own `str` shows a tuple where there is more than one."""
    words = " ".join(str(part) for part in error.args if part is not None)
    return (words or type(error).__name__).splitlines()[0]


def check_url(url: str) -> None:
    """:raises PipelineError: if this is no AMQP URL; the text does not repeat it, a password may be in it"""
    try:
        parsed = URL(url)
        known = parsed.scheme in ("amqp", "amqps") and bool(parsed.host) and parsed.port != 0
    except ValueError:
        known = False
    if not known:
        raise PipelineError("the URL is no AMQP URL: write amqp://user:password@host:port/vhost")


def with_heartbeat(url: str) -> URL:
    parsed = URL(url)
    return parsed if "heartbeat" in parsed.query else parsed.update_query(heartbeat=HEARTBEAT)


def redacted(url: str) -> str:
    """The URL as it may be shown: without its password and its query."""
    parsed = URL(url)
    return str((parsed.with_password("***") if parsed.password is not None else parsed).with_query(None))
