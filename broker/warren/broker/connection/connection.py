"""One client's connection: bytes in, frames to their channels, bytes out, and the order in which it ends."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Optional

from mypy_extensions import i64

from warren.broker.channel.authorization import Authorization
from warren.broker.channel.channel import Channel, Target
from warren.broker.channel.confirms import Confirms
from warren.broker.connection.flow_control import hold_back, leave_unread
from warren.broker.connection.peer_limits import BEFORE_TUNE_FRAME_MAX, FRAME_MAX_FUDGE, UNREAD_LIMIT
from warren.broker.connection.sockets import write
from warren.wire.content import HEADER_FIXED, PER_MESSAGE, MalformedProperties, RoutingProperties
from warren.wire.methods import BASIC, decode_error, frame
from warren.wire.reply_codes import AmqpError, Reply, describe_frame

if TYPE_CHECKING:
    from warren.broker.connection.handshake import Conversation
    from warren.broker.connection.node import Node

logger = logging.getLogger(__name__)

_frame_head = struct.Struct(">BHI").unpack_from
_method_head = struct.Struct(">HH").unpack_from
_ack = struct.Struct(">qB").unpack_from
_content_head = struct.Struct(">BHIIqH").unpack_from
# Sizes and tags are unsigned on the wire. As signed numbers the impossible ones are negative, and caught as such.

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
HEARTBEAT: Final = 8
MORE: Final = -1  # what has come of a message is as it should be; the rest is waited for
END: Final = 0xCE
BASIC_WEIGHTLESS: Final = 60 << 16
"""Class basic and the weight 0 that a content header has."""

FLUSH_BYTES: Final = 65536
"""So much output is written at once; less waits until the loop would sleep."""


class Connection:
    """A session. It knows frames, content and output; what the methods mean stands in `channel` and `commands`."""

    choked: bool = False
    """More output waits than a consumer should be ahead of: nothing is delivered until it has drained."""
    flushing: bool = False
    stalled: bool = False
    """What the client sends waits: for the disk, for the client to read, or for an alarm to end."""
    unread: bool = False
    """It is stalled because the client does not read."""
    awaiting: bool = False  # stalled because a reply waits for the disk
    reading: bool = True
    closed: bool = False
    closing: bool = False
    """A connection.close was sent; only its answer counts."""
    open: bool = False
    publishes: bool = False
    crowding: bool = False
    """It publishes into a queue that is behind: it is read in smaller pieces, so that the consumers get more turns."""
    blocked: bool = False
    can_block: bool = False
    can_cancel: bool = False
    behind: bool = False
    """The socket did not take all that was written; the transport may still have some of it."""
    descriptor: i64 = -1
    """Of a socket that is read and written without its transport; negative if it has to be asked."""
    sent: bool = False
    """Something was written since the heartbeat timer last looked."""
    received: bool = False
    out_bytes: i64 = 0
    frame_max: i64 = BEFORE_TUNE_FRAME_MAX
    position: i64 = 0
    number: i64 = 0
    """The channel, class and method that are being worked on: an error names them."""
    class_id: i64 = 0
    method_id: i64 = 0

    def __init__(
        self, node: Node, conversation: Conversation, transport: asyncio.Transport, peer: str
    ) -> None:
        self.node = node
        self.conversation = conversation
        self.transport = transport
        self.peer = peer
        self.user = b""
        self.vhost = b""
        self.buffer = b""
        self.out: list[bytes] = []
        self.channels: dict[int, Channel] = {}
        self.confirms: list[Confirms] = []
        self.last: Optional[Target] = None  # noqa: UP045
        self.authorization: Optional[Authorization] = None  # noqa: UP045
        self.same = b""
        """The header frame and the head of the body frame that `last` came with and `look` saw, if the next may be alike."""
        self.same_body: i64 = 0
        self.properties = RoutingProperties()
        self.max_message_size: i64 = node.limits.max_message_size

    # -- input

    def feed(self, data: bytes) -> None:
        """Bytes from the client; every whole frame in them is worked off, and what that causes is written."""
        node = self.node
        node.working = True
        self.take(self.buffer + data if self.buffer else data)
        node.worked()

    def take(self, buffer: bytes) -> None:
        """What was left in the buffer, and more behind it; every whole frame in it is worked off."""
        self.received = True
        self.buffer = buffer
        if not self.stalled:
            self.work()

    def work(self) -> None:
        """Work off the buffer until it holds no whole frame, or until a reply has to wait for the disk."""
        self.position = 0
        while not self.closed:
            try:
                self.scan()
                break
            except AmqpError as error:
                self.conversation.refuse(self, error)
            except MalformedProperties as error:
                self.conversation.refuse(self, AmqpError(Reply.SYNTAX_ERROR, str(error), BASIC, 40))
            except Exception:
                logger.exception("event=internal_error peer=%s", self.peer)
                self.conversation.refuse(self, AmqpError(Reply.INTERNAL_ERROR, "internal error"))
        if self.position:
            self.buffer = self.buffer[self.position :]
        if self.publishes and self.reading:
            hold_back(self)

    def scan(self) -> None:
        """The frame loop. Each frame is taken off (`position`) before it is acted on, so that an error passes it once."""
        buffer = self.buffer
        size: i64 = len(buffer)
        position = self.position
        if not self.open and not self.conversation.greeted:
            if size < 8:
                return
            position = 8
            self.position = position
            self.conversation.greet(self, buffer[:8])
            if self.closed:
                return
        while size - position >= 8 and not self.stalled:
            last = self.last
            if last is not None and buffer.startswith(last.raw, position):
                # The same publish as before: nothing of it has to be looked at.
                channel = last.channel
                start: i64 = position + len(last.raw)
                after: i64
                if self.same and buffer.startswith(self.same, start):
                    # And the same header: of the content nothing either, but that it is all there.
                    after = start + len(self.same) + self.same_body + 1
                    if after <= size and buffer[after - 1] == END and channel.assembler.target is None:
                        self.position = position = after
                        self.number = channel.number
                        channel.publish(last, buffer[start:after], self.same_body, self.properties)
                        continue
                after = self.content(channel, last, buffer, start, size)
                if after > start:
                    position = after
                    continue
                if after == MORE:
                    break
            kind: i64
            number: i64
            length: i64
            kind, number, length = _frame_head(buffer, position)
            end: i64 = position + 7 + length
            self.number = number
            self.class_id = 0
            self.method_id = 0
            if length > self.frame_max + FRAME_MAX_FUDGE - 8:
                raise self.bad_frame(kind, b"", f"{{frame_too_large,{length},{self.frame_max - 8}}}")
            if end >= size:
                break
            if buffer[end] != END:
                payload = buffer[position + 7 : end]
                raise self.bad_frame(kind, payload, f"{{invalid_frame_end_marker,{buffer[end]}}}")
            self.position = end + 1
            if kind == METHOD:
                self.method(number, buffer, position + 7, end)
                if self.closed:
                    return
            elif kind in (HEADER, BODY):
                self.content_frame(kind, number, buffer[position + 7 : end])
            elif kind != HEARTBEAT or length:
                raise self.bad_frame(kind, buffer[position + 7 : end], "unknown_frame")
            elif number:
                raise AmqpError(Reply.UNEXPECTED_FRAME, describe_frame(kind, b""))
            position = self.position
        self.position = position

    def method(self, number: i64, buffer: bytes, start: i64, end: i64) -> None:
        class_id: i64
        method_id: i64
        if end - start < 4:
            raise self.bad_frame(METHOD, buffer[start:end], "unknown_frame")
        class_id, method_id = _method_head(buffer, start)
        self.class_id = class_id
        self.method_id = method_id
        channel = self.channels.get(int(number))
        if channel is None or channel.closing or self.closing or class_id != BASIC:
            self.conversation.method(self, int(number), buffer[start:end])
            return
        if channel.assembler.target is not None:
            raise channel.assembler.unexpected("non content header")
        if method_id == 40:
            self.publish_method(channel, buffer, start, end)
        elif method_id == 80:
            if end - start != 13:
                raise decode_error(buffer[start:end])
            tag: i64
            flags: i64
            tag, flags = _ack(buffer, start + 4)
            channel.acknowledge(tag, flags & 1 == 1)
        else:
            self.conversation.method(self, int(number), buffer[start:end])

    def publish_method(self, channel: Channel, buffer: bytes, start: i64, end: i64) -> None:
        """basic.publish: ticket, exchange, routing key, mandatory and immediate."""
        if end - start < 9:
            raise decode_error(buffer[start:end])
        exchange_start: i64 = start + 7
        key_start: i64 = exchange_start + i64(buffer[start + 6]) + 1
        if key_start > end:
            raise decode_error(buffer[start:end])
        flags_at: i64 = key_start + i64(buffer[key_start - 1])
        if flags_at + 1 != end:
            raise decode_error(buffer[start:end])
        flags: i64 = i64(buffer[flags_at])
        if flags & 2 and not self.node.limits.honours_immediate:
            raise AmqpError(Reply.NOT_IMPLEMENTED, "immediate=true")
        target = Target(
            channel,
            buffer[start - 7 : end + 1],
            buffer[exchange_start : key_start - 1],
            buffer[key_start:flags_at],
            flags & 1 == 1,
        )
        target.immediate = flags & 2 == 2
        channel.resolve(target)
        self.last = target
        self.same = b""
        self.publishes = True
        start = self.position
        if self.content(channel, target, buffer, start, len(buffer)) <= start:
            channel.assembler.target = target
        if self.node.alarm:
            hold_back(self)

    def content(self, channel: Channel, target: Target, buffer: bytes, start: i64, size: i64) -> i64:
        """Publish the header frame and the one body frame at `start`, if both are whole and well-formed.

        The position after them; MORE if only an end of the body is missing; `start` if anything else is not as it should
        be, and the frame loop takes them apart and finds the error.
        """
        if size - start < 22:
            return start
        kind: i64
        number: i64
        length: i64
        class_id: i64
        body_size: i64
        flags: i64
        kind, number, length, class_id, body_size, flags = _content_head(buffer, start)
        end: i64 = start + 7 + length
        if (
            kind != HEADER
            or number != channel.number
            or class_id != BASIC_WEIGHTLESS
            or length < HEADER_FIXED
            or channel.assembler.target is not None
        ):
            return start
        if end >= size or buffer[end] != END or not 0 <= body_size <= self.max_message_size:
            return start
        after: i64 = end + 1
        if body_size:
            after = end + 9 + body_size
            if end + 8 > size or body_size > self.frame_max - 8:
                return start
            kind, number, length = _frame_head(buffer, end + 1)
            if kind != BODY or number != channel.number or length != body_size:
                return start
            if after > size:
                return MORE
            if buffer[after - 1] != END:
                return start
        self.position = after
        self.number = number
        properties = self.properties
        properties.parse(buffer, start + 7 + HEADER_FIXED, end, flags)
        if body_size and flags & PER_MESSAGE == 0:
            self.same = buffer[start : end + 8]
            self.same_body = body_size
        elif self.same:
            self.same = b""
        channel.publish(target, buffer[start:after], body_size, properties)
        return after

    def content_frame(self, kind: i64, number: i64, payload: bytes) -> None:
        """A header or body frame that `content` did not take in one go."""
        channel = self.channels.get(int(number))
        if channel is None or self.closing:
            self.conversation.stray_frame(int(kind), int(number), payload)
        elif channel.closing:
            return
        elif kind == HEADER:
            channel.assembler.take_header(payload, self.max_message_size)
        else:
            channel.assembler.take_body(payload)

    # -- errors

    def bad_frame(self, kind: i64, payload: bytes, why: str) -> AmqpError:
        """After a frame error the stream has no meaning any more: what follows in the buffer is not looked at."""
        self.position = len(self.buffer)
        return AmqpError(Reply.FRAME_ERROR, f"{describe_frame(int(kind), payload)}: {why}")

    # -- output

    def send(self, data: bytes) -> None:
        """Append a frame to the output."""
        self.out.append(data)
        self.wrote(len(data))

    def wrote(self, size: i64) -> None:
        """So much was appended to `out`: have it flushed."""
        self.out_bytes += size
        if self.out_bytes >= FLUSH_BYTES:
            self.flush()
        elif not self.flushing:
            self.node.flush_soon(self)

    def flush(self) -> None:
        """Write what has been collected; confirms come last, so that they cover all that came before."""
        if self.confirms:
            synced = self.node.synced()
            failed = self.node.failed()
            for confirms in self.confirms:
                confirms.listed = False
                confirms.send(synced, failed)
            self.confirms.clear()
        out, size = self.out, self.out_bytes
        if out:
            self.out = []
            self.out_bytes = 0
            if not self.closed:
                self.sent = True
                write(self, out, size)
                if self.choked and self.transport.get_write_buffer_size() > UNREAD_LIMIT:
                    leave_unread(self)

    def write(self, data: bytes) -> None:
        """Now, without gathering more."""
        write(self, [data], len(data))

    def has_confirms(self, confirms: Confirms) -> None:
        confirms.listed = True
        self.confirms.append(confirms)
        if not self.flushing:
            self.node.flush_soon(self)

    def choke(self) -> None:
        """The client does not read as fast as it is sent to."""
        self.choked = True

    def unchoke(self) -> None:
        self.choked = False
        if self.unread:
            self.unread = False
            self.go_on()
        for channel in list(self.channels.values()):
            channel.wake_all()

    def go_on(self) -> None:
        """One reason to wait is gone; perhaps it was the last."""
        self.stalled = self.unread or self.awaiting or self.blocked
        if self.reading and not self.stalled:
            self.transport.resume_reading()
        if self.buffer and not self.stalled:
            self.work()

    def hold(self) -> None:
        """Take no more frames until the answer that is owed has been given."""
        self.stalled = self.awaiting = True
        self.transport.pause_reading()

    def reply_when_committed(self, reply: bytes, change: int) -> None:
        """Answer when the definitions are on disk up to a change; until then the client's next frames wait."""
        self.hold()
        self.node.commit_waiters.append((change, self, reply))

    def reply_when_synced(self, reply: bytes) -> None:
        """Answer when the log is on disk up to here; until then the client's next frames wait."""
        self.hold()
        self.node.sync_waiters.append((int(self.node.collecting()), self, reply))

    def go_on_with(self, answer: Callable[[], None]) -> None:
        """Give the answer that was owed, and take the next frames."""
        if self.closed or self.closing:
            return
        self.awaiting = False
        answer()
        self.go_on()

    # -- consumers and the end

    def consumer_gone(self, number: i64, tag: bytes) -> None:
        """A consumer's queue was deleted (https://www.rabbitmq.com/docs/consumer-cancel)."""
        if self.can_cancel and not self.closed:
            self.send(frame(int(number), "basic.cancel", tag, True))

    def cancel_all(self) -> None:
        """End all consumers before the first message returns: it must not go to another one that is about to end."""
        for channel in list(self.channels.values()):
            channel.cancel_all()

    def end(self) -> None:
        """Leave: consumers, unacknowledged messages, exclusive queues, in that order; nothing is awaited in between."""
        if not self.closed:
            self.closed = True
            self.buffer = b""
            self.position = 0
            self.leave()
            self.node.connections.pop(self, None)
            self.node.paused.pop(self, None)

    def leave(self) -> None:
        """End all that the client had here, while the socket may still wait for the answer to a close."""
        self.last = None
        self.confirms.clear()
        self.cancel_all()
        for channel in list(self.channels.values()):
            channel.close()
        self.channels.clear()
        topology = self.node.vhosts.get(self.vhost)
        if topology is not None:
            topology.delete_exclusive_queues(self)
