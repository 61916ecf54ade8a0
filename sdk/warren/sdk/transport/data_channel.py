"""A channel whose messages pass through `warren.wire` alone: no task, no future, no object of aiormq for any of them."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from warren.sdk.logger import log
from warren.sdk.transport.aio_pika_connection import AmqpChannel
from warren.sdk.transport.socket_stream import FrameWriter
from warren.wire import methods
from warren.wire.delivery_scanner import GET_EMPTY, GET_OK, RETURN, DeliveryScanner, decode_deliver
from warren.wire.methods import ACK, BASIC, DELIVER

FRAME_OVERHEAD = 8
CONGESTED_BYTES = 32 * 1024
LEAVE_SECONDS = 5.0
ADDRESSES = 1000
"""Exchange and key pairs whose method frame is kept; more than that are made anew each time."""

EAGER = 256
"""So many pieces that wait to be written (some 40 messages) go at once, so that the broker works while we do."""

_FRAME = struct.Struct(">BHI")
_NEXT = struct.Struct(">BBHI")
"""The end of a frame, and the head of the next."""
_ACK = struct.Struct(">BHIHHQBB").pack
_END = b"\xce"
_DELIVER = struct.pack(">HHB", BASIC, DELIVER, 0)


Result = TypeVar("Result")


class Content(Protocol):
    """A message to be sent, as this module needs it."""

    exchange: str
    routing_key: str
    body: bytes

    @property
    def message_id(self) -> str: ...

    def header(self) -> bytes:
        """The payload of its header frame."""
        ...


class DataChannel:
    """Publishes, deliveries, confirms and settlements of one channel; synchronous methods are in `methods`, aiormq's.

    The callbacks must be set before anything is consumed or published; they must not raise.

    :param answered: what is published on it has an answer: a confirm each, or the one of the commit.
    """

    def __init__(
        self,
        channel: AmqpChannel,
        frame_writer: FrameWriter,
        scanner: DeliveryScanner,
        frame_max: int,
        expects_confirms: bool = False,
    ) -> None:
        self.expects_confirms: bool = expects_confirms
        self.methods: AmqpChannel = channel
        self.number: int = channel.number
        self.on_delivery: Callable[[bytes, bytes, bytes], None] = _ignore
        self.on_return: Callable[[bytes, bytes, bytes], None] = _ignore
        self.on_confirm: Callable[[int, bool, bool], None] = _ignore_confirm
        self.ended: asyncio.Future[None] = channel.closing
        """Done when the channel or its connection has ended; an error of the broker is its exception."""
        self._gets: deque[asyncio.Future[tuple[bytes, bytes, bytes] | None]] = deque()
        """What was asked for and not answered yet; the answers come in this order, also to those who have gone."""
        self._closing_task: asyncio.Task[None] | None = None
        self._closing = False
        """Its end is asked for: what it received goes back by itself, and any frame more would end the connection."""
        self._frame_writer = frame_writer
        self._frame_max = frame_max
        self._addresses: dict[tuple[str, str, bool], bytes] = {}
        self._acks: list[int] = []
        self._highest = 0
        """The highest tag that is settled; what was delivered before it and is not settled is outstanding."""
        self._outstanding: set[int] = set()
        scanner.open(self.number, self)
        self.ended.add_done_callback(lambda done: scanner.close(self.number, self))

    @property
    def usable(self) -> bool:
        return not (self._closing or self.ended.done() or self._frame_writer.transport.is_closing())

    @property
    def close_error(self) -> BaseException | None:
        """Why it has ended, if it has and if that is known."""
        if not self.ended.done() or self.ended.cancelled():
            return None
        return self.ended.exception()

    def abort(self) -> None:
        """Cut the channel's connection: the way to a new one when this one cannot be trusted."""
        self._frame_writer.transport.abort()

    @property
    def congested(self) -> bool:
        """More waits for the socket than it takes at once."""
        return self._frame_writer.transport.get_write_buffer_size() >= CONGESTED_BYTES

    async def drain(self) -> None:
        """Wait until the socket takes more.

        :raises OSError: if the connection is lost meanwhile.
        """
        await self._frame_writer.drain()

    def flush(self) -> None:
        """Write what waits now, so that it precedes a synchronous method."""
        self._frame_writer.flush()

    async def get(self, queue: str, timeout: float) -> tuple[bytes, bytes, bytes] | None:
        """One message of the queue (`basic.get`) as the payloads of a delivery's frames, or None if it is empty.

        A message that comes after the caller has gone is given back.

        :raises OSError: if the channel ends meanwhile; `close_error` may say why. :raises TimeoutError: if nothing comes.
        """
        got: asyncio.Future[tuple[bytes, bytes, bytes] | None]
        got = asyncio.get_running_loop().create_future()
        name = methods.frame(self.number, "basic.get", 0, _text(queue), False)
        self._frame_writer.buffer().append(name)
        self._gets.append(got)
        try:
            async with asyncio.timeout(timeout):
                await asyncio.wait((got, self.ended), return_when=asyncio.FIRST_COMPLETED)
            if not got.done():
                raise ConnectionError("the channel was closed")
            return got.result()
        except BaseException:
            if not got.cancel() and not got.cancelled() and (taken := got.result()) is not None:
                # It came in the same moment as the cancellation.
                self.requeue(decode_deliver(taken[0]).delivery_tag, failed=False)
            raise

    async def consume(
        self,
        queue: str,
        *,
        prefetch: int | None = None,
        no_ack: bool = False,
        stream: bool = False,
        timeout: float | None = None,
    ) -> str:
        """Start a consumer; returns its tag. Deliveries may come before that.

        :param prefetch: of this consumer; None leaves what was set for the one before.
        :param stream: the queue is one, for those that record what happens; it is consumed alike.
        :param timeout: seconds for each answer.
        """
        if prefetch is not None:
            await self.methods.basic_qos(prefetch_count=prefetch, timeout=timeout)
        ok = await self.methods.basic_consume(queue, _unused, no_ack=no_ack, timeout=timeout)
        return ok.consumer_tag or ""

    async def cancel(self, tag: str, timeout: float | None = None) -> None:
        """End a consumer; what came before the answer has been delivered then."""
        await self.methods.basic_cancel(tag, timeout=timeout)

    async def run(self, method: Coroutine[Any, Any, Result]) -> Result:
        """Await one of the synchronous `methods`; if the caller is cancelled, it goes on, for aiormq does not stand it."""
        task = asyncio.ensure_future(method)
        task.add_done_callback(_retrieve_exception)
        return await asyncio.shield(task)

    def close_in_background(self) -> None:
        """Close it without waiting; what it received and did not settle goes back."""
        if self.usable:
            self._closing = True
            self._closing_task = asyncio.ensure_future(self._close_quietly())

    async def _close_quietly(self) -> None:
        try:
            await self.close(LEAVE_SECONDS)
        except TimeoutError:
            self.abort()
        except Exception as error:
            # It is gone already, and not ours any more.
            log.debug("event=channel.close_failed channel=%s error=%s", self.number, error)

    async def close(self, timeout: float) -> None:
        self._frame_writer.flush()
        self._closing = True
        async with asyncio.timeout(timeout):
            await self.methods.close()

    # In

    def message(self, method: bytes, header: bytes, body: bytes) -> None:
        kind = method[3]
        try:
            if kind == DELIVER:
                self.on_delivery(method, header, body)
            elif kind == RETURN:
                self.on_return(method, header, body)
            elif kind in (GET_OK, GET_EMPTY):
                self._take(kind, method, header, body)
        except Exception:
            # An error that got as far as here is one of this program; the other channels must not suffer from it.
            log.exception("event=channel.message_failed channel=%s", self.number)
            self.abort()

    def confirm(self, sequence: int, multiple: bool, ack: bool) -> None:
        self.on_confirm(sequence, multiple, ack)

    def _take(self, kind: int, method: bytes, header: bytes, body: bytes) -> None:
        # basic.get-ok has the fields of basic.deliver, but for the consumer's tag.
        taken = (_DELIVER + method[4:], header, body) if kind == GET_OK else None
        got = self._gets.popleft()
        if not got.done():
            got.set_result(taken)
        elif taken is not None and self.usable:
            self.requeue(decode_deliver(taken[0]).delivery_tag, failed=False)

    # Out

    def publish(self, content: Content, mandatory: bool) -> None:
        """Write one message whole, or nothing; the caller bounds how much may wait.

        :raises ValueError: if properties and headers do not fit in one frame (AMQP 0-9-1 section 4.2.6.1). Sent
            nevertheless, the broker would close the connection over it, and the next one over its republish.
        """
        header, body, number = content.header(), content.body, self.number
        size, room = len(body), self._frame_max - FRAME_OVERHEAD
        if len(header) > room:
            raise ValueError(
                f"the headers take {len(header) + FRAME_OVERHEAD} bytes, and a frame of this broker {self._frame_max}"
            )
        key = (content.exchange, content.routing_key, mandatory)
        method = self._addresses.get(key) or self._address(key)
        parts = self._frame_writer.buffer()
        head = _FRAME.pack(2, number, len(header))
        if not size:
            parts += (method, head, header, _END)
        elif size <= room:
            parts += (method, head, header, _NEXT.pack(0xCE, 3, number, size), body, _END)
        else:
            parts += (method, head, header, _END)
            for start in range(0, size, room):
                piece = body[start : start + room]
                parts += (_FRAME.pack(3, number, len(piece)), piece, _END)
        if len(parts) >= EAGER:
            self._frame_writer.flush()

    def acknowledge(self, delivery_tag: int) -> None:
        """Acknowledge at the end of this turn of the event loop; tags that adjoin leave as one `multiple`.

        Only for channels with one consumer, whose delivery tags count from 1 without a gap.
        """
        if not self._acks:
            self._frame_writer.buffer()
            self._frame_writer.before_flush.append(self._acknowledge)
        self._acks.append(delivery_tag)

    def transaction_ended(self, *, committed: bool) -> None:
        """A transaction has ended on it, and with `committed` its publishes and acknowledgements count."""

    def acknowledge_up_to(self, delivery_tag: int) -> None:
        """Acknowledge all that the channel has received so far, up to this tag; only within a transaction."""
        self._highest = max(self._highest, delivery_tag)
        self._outstanding = {tag for tag in self._outstanding if tag > delivery_tag}
        self._frame_writer.buffer().append(_ack(self.number, delivery_tag, True))

    def reject(self, delivery_tag: int) -> None:
        """Refuse it for good: the broker dead-letters it, or drops it."""
        self._settle("basic.reject", delivery_tag, delivery_tag, False)

    def requeue(self, delivery_tag: int, *, failed: bool) -> None:
        """Give it back; `failed` (basic.reject) is what a handler did, the other (basic.nack) is nobody's fault."""
        if failed:
            self._settle("basic.reject", delivery_tag, delivery_tag, True)
        else:
            self._settle("basic.nack", delivery_tag, delivery_tag, False, True)

    def _settle(self, name: str, delivery_tag: int, *values: int | bytes | bool) -> None:
        self._account((delivery_tag,))
        self._frame_writer.buffer().append(methods.frame(self.number, name, *values))

    def _account(self, tags: Sequence[int]) -> None:
        """They are settled; in ascending order."""
        highest = tags[-1]
        if highest > self._highest:
            self._outstanding.update(range(self._highest + 1, highest + 1))
            self._highest = highest
        self._outstanding.difference_update(tags)

    def _acknowledge(self) -> None:
        acks, self._acks = self._acks, []
        acks.sort()
        self._account(acks)
        # It has no more than the prefetch, however many are settled while one is worked on.
        lowest = min(self._outstanding, default=self._highest + 1)
        together = 0
        while together < len(acks) and acks[together] < lowest:
            together += 1
        parts = self._frame_writer.buffer()
        if together:
            parts.append(_ack(self.number, acks[together - 1], together > 1))
        parts.extend(_ack(self.number, tag, False) for tag in acks[together:])

    def _address(self, key: tuple[str, str, bool]) -> bytes:
        exchange, routing_key, mandatory = key
        method = methods.frame(
            self.number, "basic.publish", 0, _text(exchange), _text(routing_key), mandatory, False
        )
        if len(self._addresses) < ADDRESSES:
            self._addresses[key] = method
        return method


def _text(text: str) -> bytes:
    # What came as bytes that are no UTF-8 goes on as it came.
    return text.encode("utf-8", "surrogateescape")


def _ack(channel: int, tag: int, multiple: bool) -> bytes:
    return _ACK(1, channel, 13, BASIC, ACK, tag, multiple, 0xCE)


async def _unused(message: object) -> None:
    """aiormq wants a callback; deliveries go to `on_delivery`."""


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


def _ignore(method: bytes, header: bytes, body: bytes) -> None:
    pass


def _ignore_confirm(sequence: int, multiple: bool, ack: bool) -> None:
    pass
