"""Data channel: publishes, deliveries, confirms and settlements of one AMQP channel, at a low cost per message.

It encodes and decodes their frames itself, without a task, a future or an object of aiormq for each message.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar
from uuid import uuid4

from warren.sdk.errors import TransportUnavailable, WarrenError
from warren.sdk.logger import log
from warren.sdk.transport.aio_pika_connection import AmqpChannel
from warren.sdk.transport.error_translation import to_sdk_error
from warren.sdk.transport.named_methods import BasicConsume
from warren.sdk.transport.socket_stream import FrameWriter
from warren.sdk.transport.topology_methods import TopologyMethods
from warren.wire import methods
from warren.wire.delivery_scanner import GET_EMPTY, GET_OK, RETURN, DeliveryScanner, decode_deliver
from warren.wire.methods import ACK, BASIC, DELIVER

FRAME_OVERHEAD = 8
CONGESTED_BYTES = 32 * 1024
LEAVE_SECONDS = 5.0
ADDRESSES = 1000
"""Largest number of pairs of exchange and routing key whose `basic.publish`
frame is cached; others are encoded each time."""

EAGER = 256
"""Number of buffered byte strings (about 40 messages) that triggers a flush before the end of the event loop's turn, so
that the broker works in parallel."""

_FRAME = struct.Struct(">BHI")
_NEXT = struct.Struct(">BBHI")
"""End octet of a frame, and header of the next frame."""
_ACK = struct.Struct(">BHIHHQBB").pack
_END = b"\xce"
_DELIVER = struct.pack(">HHB", BASIC, DELIVER, 0)


Result = TypeVar("Result")


class Content(Protocol):
    """Interface of a message to be published, with the attributes that a data channel reads."""

    exchange: str
    routing_key: str
    body: bytes

    @property
    def message_id(self) -> str: ...

    def header(self) -> bytes:
        """Return the payload of the content header frame."""
        ...


class DataChannel:
    """Sends publishes and settlements on one AMQP channel, and receives its deliveries and confirms.

    Set the callbacks before anything is consumed or published. They must not raise.

    :param expects_confirms: true if the broker acknowledges publishes: in confirm mode,
        or in transaction mode by its reply to the commit.
    :ivar methods: the same channel in aiormq, for synchronous methods.
    :ivar on_delivery: called with the payloads of each delivery's frames: method, header, body.
    :ivar on_return: called with the payloads of each returned message's frames: method, header, body.
    :ivar on_confirm: called with delivery tag, `multiple`, and true for an ack or false for a nack.
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
        """Done when the channel or its connection has ended; its exception is the error of the broker, if any."""
        self.consumer_ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when no more deliveries come for the consumers of the channel: the broker has cancelled one (`basic.cancel`),
        for example because its queue was deleted, or the channel has ended."""
        self._gets: deque[asyncio.Future[tuple[bytes, bytes, bytes] | None]] = deque()
        """Futures of the pending `basic.get` requests, in the order of the
        replies; those of cancelled callers stay in it."""
        self._closing_task: asyncio.Task[None] | None = None
        self._closing = False
        """True once `channel.close` is sent or received: the broker requeues unsettled
        deliveries, and further frames would be protocol errors."""
        self._frame_writer = frame_writer
        self._frame_max = frame_max
        self._addresses: dict[tuple[str, str, bool], bytes] = {}
        self._acks: list[int] = []
        self._highest = 0
        """The highest settled delivery tag."""
        self._outstanding: set[int] = set()
        """Unsettled delivery tags below the highest settled one."""
        scanner.open(self.number, self)
        self.ended.add_done_callback(lambda done: scanner.close(self.number, self))
        self.ended.add_done_callback(lambda done: self._end_consumer())
        channel.on_consumer_cancel_callbacks.add(lambda frame: self._end_consumer())

    @property
    def usable(self) -> bool:
        """True if the channel is open and its connection too."""
        return not (self._closing or self.ended.done() or self._frame_writer.transport.is_closing())

    @property
    def close_error(self) -> BaseException | None:
        """The error that ended the channel; None if it is open, or was closed without an error."""
        if not self.ended.done() or self.ended.cancelled():
            return None
        return self.ended.exception()

    def consumer_error(self, what: str) -> WarrenError:
        """Return the error for a wait that ended with the consumer or the channel.

        :param what: the failed operation, as the beginning of the error text: `cannot read stream 'events'`.
        """
        if self.close_error is not None:
            return to_sdk_error(what, self.close_error)
        reason = "the broker cancelled the consumer" if self.usable else "the connection was lost"
        return TransportUnavailable(f"{what}: {reason}")

    def _end_consumer(self) -> None:
        if not self.consumer_ended.done():
            self.consumer_ended.set_result(None)

    def abort(self) -> None:
        """Close the socket of the channel's connection at once, because the state of the channel is unknown.

        The App then opens a new connection.
        """
        self._frame_writer.transport.abort()

    @property
    def congested(self) -> bool:
        """True if the write buffer is above its high-water mark."""
        return self._frame_writer.transport.get_write_buffer_size() >= CONGESTED_BYTES

    async def drain(self) -> None:
        """Wait until the write buffer is below its limit.

        :raises OSError: if the connection is lost meanwhile.
        """
        await self._frame_writer.drain()

    def flush(self) -> None:
        """Write buffered frames now, so that a synchronous method that the caller sends next does not overtake them."""
        self._frame_writer.flush()

    async def get(self, queue: str, timeout: float) -> tuple[bytes, bytes, bytes] | None:
        """Return one message of the queue (`basic.get`), or None if the queue is empty.

        A message is returned as the payloads of its method, header and body frames, with the method in the form of a
        `basic.deliver`. One that arrives after the caller was cancelled goes back to the queue.

        :param timeout: seconds for the reply.
        :raises OSError: if the channel ends meanwhile; `close_error` may have the reason.
        :raises TimeoutError: if no reply comes.
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
                # The message arrived at the same moment as the cancellation.
                self.requeue(decode_deliver(taken[0]).delivery_tag, failed=False)
            raise

    async def consume(
        self,
        queue: str,
        *,
        prefetch: int | None = None,
        no_ack: bool = False,
        stream: bool = False,
        arguments: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> str:
        """Start a consumer; return its tag. Deliveries may arrive before this method returns.

        :param prefetch: prefetch count of this consumer; None keeps the value of the previous consumer on the channel.
        :param no_ack: True for automatic acknowledgement: the broker regards each message as acknowledged when it is
            sent.
        :param stream: true if the queue is a stream; only event capture uses this, to record it.
        :param arguments: arguments of `basic.consume`.
        :param timeout: seconds for each reply; None for no limit.
        """
        if prefetch is not None:
            await self.methods.basic_qos(prefetch_count=prefetch, timeout=timeout)
        tag = f"ctag{self.number}.{uuid4().hex}"
        # aiormq answers the broker's basic.cancel only for consumers that it knows.
        self.methods.consumers[tag] = _unused
        method = BasicConsume(queue=queue, consumer_tag=tag, no_ack=no_ack, arguments=dict(arguments or {}))
        await self.methods.rpc(method, timeout=timeout)
        return tag

    def topology(self, timeout: float | None = None) -> TopologyMethods:
        """Return the methods that declare and check exchanges and queues on this channel.

        :param timeout: seconds for each reply; None for no limit. The channel is closed after it.
        """
        return TopologyMethods(self.methods, self._frame_max, timeout)

    async def cancel(self, tag: str, timeout: float | None = None) -> None:
        """Cancel a consumer. When this returns, all its deliveries have been passed to `on_delivery`.

        :param tag: tag of the consumer, as `consume` returned it.
        :param timeout: seconds for the reply; None for no limit.
        """
        await self.methods.basic_cancel(tag, timeout=timeout)

    async def run(self, method: Coroutine[Any, Any, Result]) -> Result:
        """Await one of the synchronous `methods`.

        If the caller is cancelled, the method continues: aiormq closes a channel whose method is cancelled.
        """
        task = asyncio.ensure_future(method)
        task.add_done_callback(_retrieve_exception)
        return await asyncio.shield(task)

    def close_in_background(self) -> None:
        """Close the channel without waiting; the broker requeues its unsettled deliveries."""
        if self.usable:
            self._closing = True
            self._closing_task = asyncio.ensure_future(self._close_quietly())

    async def _close_quietly(self) -> None:
        try:
            await self.close(LEAVE_SECONDS)
        except TimeoutError:
            self.abort()
        except Exception as error:
            # The channel has ended already.
            log.debug("event=channel.close_failed channel=%s error=%s", self.number, error)

    async def close(self, timeout: float) -> None:
        """Close the channel; wait at most `timeout` seconds for the reply."""
        self._frame_writer.flush()
        self._closing = True
        async with asyncio.timeout(timeout):
            await self.methods.close()

    # Received frames

    def broker_closes(self) -> None:
        """Write nothing more, because the broker closes the channel.

        It ignores what comes before the answer, channel.close-ok, and closes the connection over what comes after it.
        """
        self._frame_writer.flush()
        self._closing = True

    def message(self, method: bytes, header: bytes, body: bytes) -> None:
        """Pass a received message to its callback or to the pending `get`; called by the scanner of received frames.

        :param method: payload of the method frame: `basic.deliver`,
            `basic.return`, `basic.get-ok` or `basic.get-empty`.
        :param header: payload of the content header frame; empty for `basic.get-empty`.
        :param body: whole body, joined from its frames.
        """
        kind = method[3]
        try:
            if kind == DELIVER:
                self.on_delivery(method, header, body)
            elif kind == RETURN:
                self.on_return(method, header, body)
            elif kind in (GET_OK, GET_EMPTY):
                self._take(kind, method, header, body)
        except Exception:
            # Such an error is a bug of this program. The scanner must go on for the other channels.
            log.exception("event=channel.message_failed channel=%s", self.number)
            self.abort()

    def confirm(self, sequence: int, multiple: bool, ack: bool) -> None:
        """Pass a publisher confirm to `on_confirm`; called by the scanner of received frames.

        :param sequence: delivery tag of the confirm.
        :param multiple: True if it confirms all publishes up to `sequence`.
        :param ack: True for an ack, False for a nack.
        """
        self.on_confirm(sequence, multiple, ack)

    def _take(self, kind: int, method: bytes, header: bytes, body: bytes) -> None:
        # basic.get-ok has the fields of basic.deliver, but for the consumer's tag.
        taken = (_DELIVER + method[4:], header, body) if kind == GET_OK else None
        got = self._gets.popleft()
        if not got.done():
            got.set_result(taken)
        elif taken is not None and self.usable:
            self.requeue(decode_deliver(taken[0]).delivery_tag, failed=False)

    # Sent frames

    def publish(self, content: Content, mandatory: bool) -> None:
        """Append the frames of a message to the write buffer, all of them or none.

        This does not wait for the socket: the caller has to limit how much is buffered.

        :param mandatory: True to have the broker return the message if no queue takes it.
        :raises ValueError: if properties and headers do not fit in one frame (AMQP 0-9-1 section 4.2.6.1). The broker
            would close the connection over such a frame, and close the next one when the message is published again.
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
        """Acknowledge a delivery at the end of this turn of the event loop.

        Adjacent delivery tags are sent as one ack with `multiple`. Only for channels with
        one consumer, whose delivery tags count from 1 without a gap.
        """
        if self._closing:
            return
        if not self._acks:
            self._frame_writer.buffer()
            self._frame_writer.before_flush.append(self._acknowledge)
        self._acks.append(delivery_tag)

    def transaction_ended(self, *, committed: bool) -> None:
        """Do nothing; called after each commit or rollback.

        `CapturedChannel` overrides it, to record which messages took effect.

        :param committed: True after a commit, False after a rollback.
        """

    def acknowledge_up_to(self, delivery_tag: int) -> None:
        """Acknowledge all deliveries of the channel up to this tag; only within a transaction."""
        if self._closing:
            return
        self._highest = max(self._highest, delivery_tag)
        self._outstanding = {tag for tag in self._outstanding if tag > delivery_tag}
        self._frame_writer.buffer().append(_ack(self.number, delivery_tag, True))

    def reject(self, delivery_tag: int) -> None:
        """Reject a delivery for good: the broker dead-letters or drops it."""
        self._settle("basic.reject", delivery_tag, delivery_tag, False)

    def requeue(self, delivery_tag: int, *, failed: bool) -> None:
        """Return a delivery to its queue.

        :param failed: True if a handler failed: sends `basic.reject`, which counts against a
            delivery limit. False sends `basic.nack`.
        """
        if failed:
            self._settle("basic.reject", delivery_tag, delivery_tag, True)
        else:
            self._settle("basic.nack", delivery_tag, delivery_tag, False, True)

    def _settle(self, name: str, delivery_tag: int, *values: int | bytes | bool) -> None:
        if self._closing:
            return
        self._account((delivery_tag,))
        self._frame_writer.buffer().append(methods.frame(self.number, name, *values))

    def _account(self, tags: Sequence[int]) -> None:
        """Record that deliveries are settled, so that an ack with `multiple` covers no unsettled one.

        :param tags: their delivery tags in ascending order.
        """
        highest = tags[-1]
        if highest > self._highest:
            self._outstanding.update(range(self._highest + 1, highest + 1))
            self._highest = highest
        self._outstanding.difference_update(tags)

    def _acknowledge(self) -> None:
        acks, self._acks = self._acks, []
        acks.sort()
        self._account(acks)
        # It has at most prefetch entries, however many deliveries are settled while one is handled.
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
    # Bytes that are not UTF-8 came in as surrogates, and go out unchanged.
    return text.encode("utf-8", "surrogateescape")


def _ack(channel: int, tag: int, multiple: bool) -> bytes:
    return _ACK(1, channel, 13, BASIC, ACK, tag, multiple, 0xCE)


async def _unused(message: object) -> None:
    """Ignore a message; aiormq demands a callback for each consumer, but deliveries go to `on_delivery`."""


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


def _ignore(method: bytes, header: bytes, body: bytes) -> None:
    pass


def _ignore_confirm(sequence: int, multiple: bool, ack: bool) -> None:
    pass
