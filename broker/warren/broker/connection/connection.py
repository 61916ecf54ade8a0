"""Connection of one client: reading and writing of frames, and pauses of either direction."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import struct
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Optional

from mypy_extensions import i64

from warren.broker.access.authorization import Authorization
from warren.broker.access.pending_decisions import DecisionPending
from warren.broker.access.sasl_authentication import PeerIdentity
from warren.broker.channel.channel import Channel, PublishTarget
from warren.broker.channel.publisher_confirms import PublisherConfirms
from warren.broker.channel.subscription import LARGE_CONTENT
from warren.broker.connection.connection_phases import AWAITING_HEADER, CLOSING, LINGERING
from warren.broker.connection.flow_control import (
    ALARM,
    AWAITING_REPLY,
    BACKLOG_BYTES,
    BACKLOG_MESSAGES,
    BULK_WORK,
    CLIENT_NOT_READING,
    DISK,
    FRAMES_HELD,
    PUBLISHER_PAUSED,
    STOPPING,
    TURN_OVER,
    UNREAD_LIMIT,
)
from warren.broker.connection.large_output import LargeOutput
from warren.broker.connection.lifecycle import ConnectionLifecycle
from warren.wire.amqp_url import connection_name
from warren.wire.content import HEADER_FIXED, PER_MESSAGE, MalformedProperties, RoutingProperties, u16, u32
from warren.wire.methods import BASIC, decode_error, frame
from warren.wire.reply_codes import AmqpError, Reply, describe_frame

if TYPE_CHECKING:
    from warren.broker.connection.admission import AdmittedSocket
    from warren.broker.connection.broker_node import BrokerNode
    from warren.broker.connection.client_session import SessionDescription
    from warren.broker.model.message import Message

logger = logging.getLogger(__name__)

_signed = struct.Struct(">q").unpack_from

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
HEARTBEAT: Final = 8
INCOMPLETE: Final = -1
"""Result of `publish_content`: the frames received so far are well-formed, but the body is not complete yet."""
END: Final = 0xCE
"""Octet that ends every frame."""
BASIC_WEIGHTLESS: Final = 60 << 16
"""Class id of basic and weight 0: the first four bytes of a content header's payload, as one number."""

INITIAL_FRAME_MAX: Final = 8192
"""Largest accepted frame, in bytes, until connection.tune-ok has negotiated frame-max."""
FRAME_MAX_FUDGE: Final = 8
"""Bytes by which a frame may exceed frame-max: RabbitMQ tolerates clients that forget the frame's own overhead."""
FLUSH_BYTES: Final = 65536
"""Bytes of pending output from which on it is written at once; less is written before the event loop polls again."""
LARGE_PIECE: Final = 4096
"""Average size, in bytes, above which pieces of output are not joined before they are written.

Copying large pieces would cost more than passing each to os.writev.
"""
MOST_PIECES: Final = 512
"""Most pieces that are passed to one os.writev: half of the system's limit (IOV_MAX)."""

TARGETS_KEPT: Final = 128
"""Most decoded method frames of basic.publish that a connection keeps, each with the queues it routes to."""
CHECKED_BYTES: Final = 2048
"""Bytes of publishes that are processed in a row before the time is checked."""

SERIALS: Final = itertools.count(1)


class Connection:
    """Connection of one client: reading and writing of frames, and pauses of either direction.

    Its `phase` changes in `lifecycle` alone, which also handles the methods that are not on the hot path.
    """

    phase: i64 = AWAITING_HEADER
    """Phase of the connection: a constant of `connection_phases`."""
    reads_paused: i64 = 0
    """Reasons not to read the socket: bits defined in `flow_control`; 0 while it is read."""
    deliveries_paused: bool = False
    """True while the write buffer is full, or large output waits for it: consumers get nothing until the client reads."""
    write_buffer_full: bool = False
    """True while the transport's write buffer is above its high-water mark, until it is below its low-water mark."""
    throttled: bool = False
    """True while the queue last published to has a backlog: the socket is read in smaller chunks, to slow it down."""
    has_published: bool = False
    """True if the client has published since the connection opened, or since the last alarm was raised."""
    supports_blocked: bool = False
    """True if the client has the capability connection.blocked."""
    supports_cancel: bool = False
    """True if the client has the capability consumer_cancel_notify."""
    flush_scheduled: bool = False
    """True while the connection is in `BrokerNode.unflushed`, whose output the next flush writes."""
    transport_buffers: bool = False
    """True if the transport got output that the socket did not take at once, and may still hold some of it."""
    descriptor: i64 = -1
    """File descriptor if the socket is read and written directly; -1 if asyncio's transport must be used (TLS)."""
    has_sent: bool = False
    """True if bytes were written since the last heartbeat was due; then no heartbeat is sent."""
    has_received: bool = False
    """True if bytes were received since the last check for missing heartbeats."""
    out_bytes: i64 = 0
    """Bytes of output that have yet to be written (sum of the sizes of `out`)."""
    frame_max: i64 = INITIAL_FRAME_MAX
    catch_up: i64 = 0
    """Value of `FlowControl.catch_ups` since which `admitted_bytes` counts."""
    admitted_bytes: i64 = 0
    """Bytes of input that were processed while the log was behind."""
    turn_end: float = 0.0
    """Time at which other clients get their turn, by `time.monotonic()`, while frames are processed."""
    position: i64 = 0
    """Position in `buffer` up to which frames have been processed."""
    repeat_from: i64 = -1
    """Position in `buffer` from which frames are processed again after a pending access decision; -1 if they cannot be."""
    channel_number: i64 = 0
    """Number of the channel whose frame is being processed; an error closes it, or the connection if it is 0."""
    bulk_waits: i64 = 0
    """Number of calls of `after_bulk_work` whose bulk work is not finished."""
    class_id: i64 = 0
    """Class id of the method being processed, reported in channel.close or connection.close after an error."""
    method_id: i64 = 0
    """Method id of the method being processed, reported in channel.close or connection.close after an error."""

    def __init__(self, node: BrokerNode, transport: asyncio.Transport, identity: PeerIdentity) -> None:
        self.node = node
        self.transport = transport
        self.identity = identity
        self.peer = identity.address
        self.admitted: Optional[AdmittedSocket] = None  # noqa: UP045
        """The socket as the listener's bounds count it; None if nothing counts it."""
        self.serial = next(SERIALS)
        """Number that no other connection of this process has."""
        self.connected_at = time.time()
        """Unix time at which the connection was accepted."""
        self.user = b""
        """Name of the user, once logged in; empty before."""
        self.vhost = b""
        """Name of the virtual host, once the connection is open; empty before."""
        self.authorization: Optional[Authorization] = None  # noqa: UP045
        """Permissions of the user in the virtual host; None until the connection is open."""
        self.buffer = b""
        """Received bytes that are not processed yet: an incomplete frame, or frames whose processing is paused."""
        self.out: list[bytes | memoryview] = []
        """Pieces of output that have yet to be written."""
        self.large_output: Optional[LargeOutput] = None  # noqa: UP045
        """Large output that the transport has not got yet; None without any."""
        self.channels: dict[int, Channel] = {}
        self.scheduled_confirms: list[PublisherConfirms] = []
        """Publisher confirms of the channels for which the next flush sends basic.ack and basic.nack."""
        self.held_cancels: Optional[list[bytes]] = None  # noqa: UP045
        """Frames of basic.cancel that follow the reply to the method in progress; None while they are sent at once."""
        self.last_target: Optional[PublishTarget] = None  # noqa: UP045
        """Decoded method frame of the last basic.publish, reused if the next one is the same."""
        self.targets: dict[bytes, PublishTarget] = {}
        """Decoded method frames of earlier publishes, by the encoded frame; they were resolved in `targets_epoch`."""
        self.targets_epoch: i64 = -1
        """Value of `VirtualHost.routing_epoch` for which `targets` was filled; at any other value it is outdated."""
        self.last_header = b""
        """Header frame and frame head of the body of the last publish, to reuse its parsed properties.

        They are reused if the next publish begins with the same bytes. Empty if its properties differ per message.
        """
        self.last_body_size: i64 = 0
        self.properties = RoutingProperties()
        """Routing properties of the last publish."""
        self.max_message_size: i64 = node.settings.max_message_size
        self.lifecycle = ConnectionLifecycle(self)

    # -- input

    def data_received(self, data: bytes) -> None:
        """Process bytes from the client, and write the output that they cause."""
        node = self.node
        node.processing_input = True
        self.process_input(self.buffer + data if self.buffer else data)
        node.input_processed()

    def process_input(self, buffer: bytes) -> None:
        """Process input: the bytes left over from the last call, followed by newly received ones."""
        self.has_received = True
        self.buffer = buffer
        if not self.reads_paused & FRAMES_HELD:
            self.process_buffer()

    def process_buffer(self) -> None:
        """Process the complete frames in the buffer, until none is left or their processing is paused.

        It is paused, for example, by a resource alarm or until a reply has been sent, and after 3 ms for a turn of the
        event loop. Errors are handled here.
        """
        self.position = 0
        self.repeat_from = -1
        self.turn_end = time.monotonic() + self.node.virtual_hosts.bulk_work.slice_seconds
        if self.phase >= LINGERING:
            self.buffer = b""
            return
        while self.phase < LINGERING:
            try:
                self.process_frames()
                break
            except AmqpError as error:
                self.lifecycle.handle_error(error)
            except MalformedProperties as error:
                self.lifecycle.handle_error(AmqpError(Reply.SYNTAX_ERROR, str(error), BASIC, 40))
            except DecisionPending as pending:
                if self.repeat_from < 0:
                    # Content in several frames, with a key in CC or BCC that is not decided yet.
                    self.lifecycle.handle_error(AmqpError(Reply.ACCESS_REFUSED, "access is not decided"))
                    continue
                self.position = self.repeat_from
                self.lifecycle.await_decision(pending)
            except Exception:
                logger.exception("event=connection.crashed peer=%s", self.peer)
                self.lifecycle.handle_error(AmqpError(Reply.INTERNAL_ERROR, "internal error"))
        if self.position:
            self.buffer = self.buffer[self.position :]
        if self.has_published and not self.reads_paused & PUBLISHER_PAUSED:
            self.control_publisher()

    def process_frames(self) -> None:
        """Process complete frames, and raise the error of the first one that is wrong.

        `position`, the index in the buffer where the next frame starts, is moved past each frame before that frame is
        processed, so that a frame that causes an error is not processed again.
        """
        buffer = self.buffer
        size: i64 = len(buffer)
        position = self.position
        if self.phase == AWAITING_HEADER:
            if size < 8:
                return
            position = 8
            self.position = position
            self.lifecycle.handshake.receive_header(buffer[:8])
            if self.phase >= LINGERING:
                return
        frames_held: i64 = FRAMES_HELD
        check_at: i64 = position + CHECKED_BYTES
        while size - position >= 8 and not self.reads_paused & frames_held:
            self.repeat_from = position
            last = self.last_target
            if last is not None and buffer.startswith(last.frame, position):
                # The method frame repeats the last one: it need not be decoded.
                channel = last.channel
                start: i64 = position + len(last.frame)
                after: i64
                if self.last_header and buffer.startswith(self.last_header, start):
                    # So does the header frame: all that is left to check is that the body is complete.
                    after = start + len(self.last_header) + self.last_body_size + 1
                    if after <= size and buffer[after - 1] == END and channel.assembler.target is None:
                        self.position = position = after
                        self.channel_number = channel.number
                        channel.publish(last, buffer[start:after], self.last_body_size, self.properties)
                        if position >= check_at or last.is_slow:
                            check_at = position + CHECKED_BYTES
                            self.check_turn()
                        continue
                after = self.publish_content(channel, last, buffer, start, size)
                if after > start:
                    position = after
                    if position >= check_at or last.is_slow:
                        check_at = position + CHECKED_BYTES
                        self.check_turn()
                    continue
                if after == INCOMPLETE:
                    break
            kind: i64
            number: i64
            length: i64
            kind = buffer[position]
            number = u16(buffer, position + 1)
            length = u32(buffer, position + 3)
            end: i64 = position + 7 + length
            self.channel_number = number
            self.class_id = 0
            self.method_id = 0
            if length > self.frame_max + FRAME_MAX_FUDGE - 8:
                raise self.frame_error(kind, b"", f"{{frame_too_large,{length},{self.frame_max - 8}}}")
            if end >= size:
                break
            if buffer[end] != END:
                payload = buffer[position + 7 : end]
                raise self.frame_error(kind, payload, f"{{invalid_frame_end_marker,{buffer[end]}}}")
            self.position = end + 1
            if kind == METHOD:
                self.process_method(number, buffer, position + 7, end)
                if self.phase >= LINGERING:
                    return
            elif kind in (HEADER, BODY):
                self.repeat_from = -1
                self.process_content_frame(kind, number, buffer[position + 7 : end])
            elif kind != HEARTBEAT or length:
                raise self.frame_error(kind, buffer[position + 7 : end], "unknown_frame")
            elif number:
                raise AmqpError(Reply.UNEXPECTED_FRAME, describe_frame(kind, b""))
            position = self.position
        self.position = position

    def process_method(self, number: i64, buffer: bytes, start: i64, end: i64) -> None:
        """Process the payload of a method frame: basic.publish and basic.ack here, all other methods in `lifecycle`.

        :param number: number of the channel; 0 for methods of the connection itself.
        :param buffer: received bytes, with the payload from `start` to before `end`.
        :raises AmqpError: if the frame is malformed, unexpected or the method fails.
        """
        class_id: i64
        method_id: i64
        if end - start < 4:
            raise self.frame_error(METHOD, buffer[start:end], "unknown_frame")
        class_id = u16(buffer, start)
        method_id = u16(buffer, start + 2)
        self.class_id = class_id
        self.method_id = method_id
        channel = self.channels.get(int(number))
        if channel is None or channel.closing or self.phase == CLOSING or class_id != BASIC:
            self.lifecycle.process_method(int(number), buffer[start:end])
            self.check_turn()
            return
        if channel.assembler.target is not None:
            raise channel.assembler.unexpected("non content header")
        if method_id == 40:
            self.process_publish(channel, buffer, start, end)
        elif method_id == 80:
            if end - start != 13:
                raise decode_error(buffer[start:end])
            tag: i64
            if buffer[start + 4] < 0x80:
                tag = u32(buffer, start + 4) << 32 | u32(buffer, start + 8)
            else:
                # Tags are unsigned on the wire. As a signed number, an impossible one is negative, and refused as such.
                tag = _signed(buffer, start + 4)[0]
            multiple = buffer[start + 12] & 1 == 1
            channel.acknowledge(tag, multiple)
            if multiple:
                self.check_turn()
        else:
            self.lifecycle.process_method(int(number), buffer[start:end])
            self.check_turn()

    def process_publish(self, channel: Channel, buffer: bytes, start: i64, end: i64) -> None:
        """Decode basic.publish, find the queues it routes to, and publish the content if it has arrived completely.

        During a resource alarm, block the connection instead: the frame is processed when the alarm is over.

        :param buffer: received bytes, with the payload of the method frame from `start` to before `end`.
        :raises AmqpError: if the frame is malformed, or the publish is refused.
        """
        # What is published on a disk that has failed is refused instead (basic.nack).
        if self.node.flow.alarm and not self.node.log_failed():
            self.position = start - 7
            self.control_publisher()
            return
        encoded = buffer[start - 7 : end + 1]
        epoch = channel.vhost.routing_epoch
        if epoch != self.targets_epoch:
            # Queues that were deleted must not stay in memory.
            self.targets.clear()
            self.targets_epoch = epoch
        target = self.targets.get(encoded)
        if target is None:
            target = self.decode_publish(channel, encoded, buffer, start, end)
            channel.resolve(target)
            if len(self.targets) >= TARGETS_KEPT:
                self.targets.clear()
            if not channel.has_topic_permissions:
                self.targets[encoded] = target
        last = self.last_target
        if last is not None:
            last.count_publishes()
        self.last_target = target
        self.last_header = b""
        self.has_published = True
        start = self.position
        if self.publish_content(channel, target, buffer, start, len(buffer)) <= start:
            channel.assembler.target = target

    def decode_publish(
        self, channel: Channel, encoded: bytes, buffer: bytes, start: i64, end: i64
    ) -> PublishTarget:
        """Return the decoded method frame of a basic.publish.

        :param encoded: the frame.
        :param buffer: received bytes, with the payload of the frame from `start` to before `end`.
        :raises AmqpError: if the frame is malformed, or has a flag that is refused.
        """
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
        if flags & 2 and not self.node.settings.honours_immediate:
            raise AmqpError(Reply.NOT_IMPLEMENTED, "immediate=true")
        target = PublishTarget(
            channel,
            encoded,
            buffer[exchange_start : key_start - 1],
            buffer[key_start:flags_at],
            flags & 1 == 1,
        )
        target.immediate = flags & 2 == 2
        return target

    def publish_content(
        self, channel: Channel, target: PublishTarget, buffer: bytes, start: i64, size: i64
    ) -> i64:
        """Publish the header frame and the one body frame at `start` in `buffer`, if complete and well-formed.

        The buffer has `size` bytes.

        Returns the position after them if the message was published, or INCOMPLETE if only the rest of the body is
        missing. In all other cases, such as several body frames or a malformed one, it returns `start`, and the caller
        processes the frames one by one and detects the error, if there is one.
        """
        if size - start < 22:
            return start
        kind: i64
        number: i64
        length: i64
        kind = buffer[start]
        number = u16(buffer, start + 1)
        length = u32(buffer, start + 3)
        # The lower half; the upper one has to be 0.
        body_size: i64 = u32(buffer, start + 15)
        end: i64 = start + 7 + length
        if (
            kind != HEADER
            or number != channel.number
            or u32(buffer, start + 7) != BASIC_WEIGHTLESS
            or u32(buffer, start + 11)
            or length < HEADER_FIXED
            or channel.assembler.target is not None
        ):
            return start
        if end >= size or buffer[end] != END or body_size > self.max_message_size:
            return start
        flags: i64 = u16(buffer, start + 19)
        after: i64 = end + 1
        if body_size:
            after = end + 9 + body_size
            if end + 8 > size or body_size > self.frame_max - 8:
                return start
            kind = buffer[end + 1]
            number = u16(buffer, end + 2)
            length = u32(buffer, end + 4)
            if kind != BODY or number != channel.number or length != body_size:
                return start
            if after > size:
                return INCOMPLETE
            if buffer[after - 1] != END:
                return start
        self.position = after
        self.channel_number = number
        properties = self.properties
        properties.parse(buffer, start + 7 + HEADER_FIXED, end, flags)
        if body_size and flags & PER_MESSAGE == 0:
            self.last_header = buffer[start : end + 8]
            self.last_body_size = body_size
        elif self.last_header:
            self.last_header = b""
        channel.publish(target, buffer[start:after], body_size, properties)
        return after

    def process_content_frame(self, kind: i64, number: i64, payload: bytes) -> None:
        """Process a single header or body frame, of content that `publish_content` did not process as a whole.

        :param kind: frame type: HEADER or BODY.
        :param number: number of the channel.
        :param payload: payload of the frame.
        """
        channel = self.channels.get(int(number))
        if channel is None or self.phase == CLOSING:
            self.lifecycle.reject_content_frame(int(kind), int(number), payload)
        elif channel.closing:
            return
        elif kind == HEADER:
            channel.assembler.take_header(payload, self.max_message_size)
        else:
            channel.assembler.take_body(payload)

    def frame_error(self, kind: i64, payload: bytes, reason: str) -> AmqpError:
        """Return the error of a malformed frame, and discard the buffer: the next frame's start is unknown.

        :param kind: frame type.
        :param payload: payload of the frame, or b"" if unknown; the reply text quotes its first bytes.
        :param reason: RabbitMQ's term for the defect at the end of the reply text, such as `unknown_frame`.
        """
        self.position = len(self.buffer)
        return AmqpError(Reply.FRAME_ERROR, f"{describe_frame(int(kind), payload)}: {reason}")

    # -- pauses of input

    def pause_reads(self, reason: i64) -> None:
        """Stop reading the socket, and record the reason: a bit defined in `flow_control`."""
        if self.phase < CLOSING:
            self.reads_paused |= reason
            self.transport.pause_reading()

    def resume_reads(self, reasons: i64) -> None:
        """Clear reasons for not reading the socket; if none is left, resume reading.

        Frames received before the pause are processed as soon as no reason in FRAMES_HELD is left.

        :param reasons: the reasons to clear, bits defined in `flow_control`.
        """
        if self.phase >= CLOSING:
            return
        self.reads_paused &= ~reasons
        if not self.reads_paused:
            self.transport.resume_reading()
        if self.buffer and not self.reads_paused & FRAMES_HELD:
            self.process_buffer()

    def control_publisher(self) -> None:
        """Throttle this publisher while the queue it last published to has a backlog; pause it if necessary.

        It is paused during a resource alarm, and while publishes arrive faster than the disk can take them.
        """
        flow = self.node.flow
        self.throttled = self.target_has_backlog()
        if flow.alarm:
            self.block()
        elif (flow.log_behind() and not flow.admits(self, self.position)) or (
            flow.paging_behind and not self.has_unacknowledged()
        ):
            self.pause_reads(DISK)
        else:
            return
        flow.paused[self] = True

    def target_has_backlog(self) -> bool:
        """Return whether the queue last published to has consumers and more ready messages than the backlog limit.

        Publishers to a queue without consumers are not throttled: there is no consumer that could catch up.
        """
        target = self.last_target
        if target is None or not target.queues:
            return False
        queue = target.queues[0]
        ready = queue.ready
        return (ready.count > BACKLOG_MESSAGES or ready.bytes > BACKLOG_BYTES) and len(
            queue.scheduler.consumers
        ) > 0

    def has_unacknowledged(self) -> bool:
        """Return whether the client has unacknowledged deliveries.

        A client that has some is read even while messages cannot be paged out to disk as fast as they arrive, because
        its acknowledgements free memory.
        """
        return any(channel.unacked for channel in self.channels.values())

    def block(self) -> None:
        """Pause this publisher for an alarm, and send connection.blocked if the client supports it.

        https://www.rabbitmq.com/docs/connection-blocked
        """
        if self.phase < CLOSING and not self.reads_paused & ALARM:
            self.pause_reads(ALARM)
            self.node.hangups.watch(self)
            if self.supports_blocked:
                self.send(frame(0, "connection.blocked", self.node.flow.alarm))

    def on_alarm(self) -> None:
        """Decode the next publish again, which blocks the connection, and watch for the end of a client that waits."""
        self.has_published = False
        self.forget_target()
        if self.reads_paused & AWAITING_REPLY:
            self.node.hangups.watch(self)

    def resume_publisher(self) -> None:
        """Resume reading after an alarm, with connection.unblocked, or after the log or paging has caught up."""
        self.node.hangups.unwatch(self)
        if self.phase < CLOSING and self.reads_paused & ALARM and self.supports_blocked:
            self.send(frame(0, "connection.unblocked"))
        self.resume_reads(ALARM | DISK)

    def blocked_input_bytes(self) -> int:
        """Return the bytes of memory that hold input which waits for the end of an alarm; 0 if there is none."""
        if not self.reads_paused & ALARM:
            return 0
        held: i64 = len(self.buffer)
        for channel in self.channels.values():
            held += channel.assembler.held_bytes()
        # What asyncio has read ahead of a TLS connection; it has no public name.
        tls = getattr(getattr(self.transport, "_ssl_protocol", None), "_incoming", None)
        return int(held + (i64(tls.pending) if tls is not None else 0))

    def await_reply(self) -> None:
        """Pause the processing of the client's frames until `resume_with` has sent the reply to the last one."""
        self.pause_reads(AWAITING_REPLY)
        if self.node.flow.alarm:
            # On a full disk, the reply may have to wait for as long as the alarm stands.
            self.node.hangups.watch(self)

    def reply_when_committed(self, reply: bytes, change: int) -> None:
        """Send `reply` when the changes of definitions that it depends on are on disk.

        Until then, no further frames of the client are processed.

        :param change: number of the last such change; changes are numbered, and stored, in the order they were made.
        """
        self.await_reply()
        self.node.commit_waiters.append((change, self, reply))

    def reply_when_synced(self, reply: bytes) -> None:
        """Send `reply` when all records that the log has now are on disk, at once if they are.

        Until then, no further frames of the client are processed.
        """
        batch = self.node.last_batch()
        if batch <= self.node.synced_batch():
            self.send(reply)
            return
        self.await_reply()
        self.node.sync_waiters.append((int(batch), self, reply))

    def resume_with(self, send_reply: Callable[[], None]) -> None:
        """Call `send_reply`, and process the client's frames that waited for the reply; do neither while closing."""
        if self.phase < CLOSING:
            # Before the reply, so that an error in it does not leave the connection paused for a reply.
            self.reads_paused &= ~AWAITING_REPLY
            if not self.reads_paused & ALARM:
                self.node.hangups.unwatch(self)
            send_reply()
            # No reason is cleared: this reply may have to wait for the disk itself.
            self.resume_reads(0)

    def check_turn(self) -> None:
        """Process no more frames in this iteration of the event loop if they have taken the time of a slice."""
        if time.monotonic() >= self.turn_end and not self.reads_paused & TURN_OVER and self.phase < CLOSING:
            if self.descriptor < 0:
                self.pause_reads(TURN_OVER)
            else:
                # `SocketReader` does not read it meanwhile. The pause is too short to remove the socket from the poll.
                self.reads_paused |= TURN_OVER
            self.node.loop.call_soon(self.resume_reads, TURN_OVER)

    def after_bulk_work(self, call: Optional[Callable[[], None]]) -> None:  # noqa: UP045
        """Process no more frames of the client until the bulk work that it has caused is finished.

        :param call: function that sends the reply; it is called when the work is finished, unless the connection is
            closing then, or at once if there is no such work. None if there is no reply to send.
        """
        bulk_work = self.node.virtual_hosts.bulk_work
        if bulk_work.is_pending(self):
            self.pause_reads(BULK_WORK)
            self.bulk_waits += 1
            bulk_work.after(self, lambda: self.on_bulk_work_finished(call))
        elif call is not None:
            call()

    def on_bulk_work_finished(self, call: Optional[Callable[[], None]]) -> None:  # noqa: UP045
        """Call `call`, and process the client's frames that waited for the end of bulk work; do neither if closing."""
        self.bulk_waits -= 1
        if self.phase < CLOSING:
            self.node.loop.call_soon(self.resume_after_bulk_work)
            if call is not None:
                call()

    def resume_after_bulk_work(self) -> None:
        """Process the client's frames again, unless they wait for further bulk work: one frame may cause several pieces."""
        if not self.bulk_waits:
            self.resume_reads(BULK_WORK)

    # -- output

    def send(self, data: bytes) -> None:
        """Append complete frames to the output, which is flushed soon."""
        self.out.append(data)
        self.count_output(len(data))

    def send_delivery(
        self, before_tag: bytes, tag: bytes, after_tag: bytes, content: bytes, size: i64
    ) -> None:
        """Append basic.deliver, as three pieces, and the content to the output, which is flushed soon.

        :param before_tag: encoded frame up to the delivery tag.
        :param tag: encoded delivery tag and the bit `redelivered`.
        :param after_tag: rest of the encoded frame.
        :param content: encoded header and body frames.
        :param size: bytes of the four pieces together.
        """
        out = self.out
        out.append(before_tag)
        out.append(tag)
        out.append(after_tag)
        out.append(content)
        # As `count_output`, without a call for each message.
        self.out_bytes += size
        if self.out_bytes >= FLUSH_BYTES:
            self.flush()
        elif not self.flush_scheduled:
            self.node.flush_later(self)

    def send_large_delivery(self, pieces: list[bytes | memoryview], size: i64) -> None:
        """Write a delivery whose content is too large to be copied, behind the output that is pending.

        :param pieces: encoded frames.
        :param size: bytes of all pieces.
        """
        self.out += pieces
        self.out_bytes += size
        self.flush()

    def count_output(self, size: i64) -> None:
        """Add `size` to the count of pending bytes, and flush: at once if FLUSH_BYTES are reached, else soon."""
        self.out_bytes += size
        if self.out_bytes >= FLUSH_BYTES:
            self.flush()
        elif not self.flush_scheduled:
            self.node.flush_later(self)

    def schedule_confirms(self, confirms: PublisherConfirms) -> None:
        """Register the confirms of a channel to be sent by the next flush."""
        confirms.flush_scheduled = True
        self.scheduled_confirms.append(confirms)
        if not self.flush_scheduled:
            self.node.flush_later(self)

    def append_confirm(self, data: bytes) -> None:
        """Append a basic.ack or basic.nack frame (`data`) to the output, without scheduling a flush.

        `flush` is the caller.
        """
        self.out.append(data)
        self.out_bytes += len(data)

    def flush(self) -> None:
        """Write the pending output. Confirms are added last, so that one frame covers as many publishes as possible."""
        if self.scheduled_confirms:
            synced = self.node.synced_batch()
            failed = self.node.log_failed()
            for confirms in self.scheduled_confirms:
                confirms.flush_scheduled = False
                confirms.send(synced, failed)
            self.scheduled_confirms.clear()
        out, size = self.out, self.out_bytes
        if out:
            self.out = []
            self.out_bytes = 0
            if self.phase < LINGERING:
                self.has_sent = True
                self.write_pieces(out, size)
                if self.deliveries_paused and self.unread_bytes() > UNREAD_LIMIT:
                    # The client asks for replies that it does not read.
                    self.pause_reads(CLIENT_NOT_READING)

    def write(self, data: bytes) -> None:
        """Write bytes to the socket at once, ahead of output that has been appended but not flushed."""
        self.write_pieces([data], len(data))

    def write_pieces(self, pieces: list[bytes | memoryview], size: i64) -> None:
        """Write as much as the socket takes, and pass the rest to the asyncio transport.

        While the transport still holds output, all further output goes through it, to keep the order.

        :param size: bytes of all pieces.
        """
        if size >= LARGE_CONTENT or self.large_output is not None:
            self.write_large(pieces)
            return
        if self.descriptor < 0 or (self.transport_buffers and self.transport.get_write_buffer_size()):
            self.transport.write(b"".join(pieces))
            return
        count: i64 = len(pieces)
        if count > MOST_PIECES or count * LARGE_PIECE > size:
            pieces = [b"".join(pieces)]
        try:
            count = os.writev(int(self.descriptor), pieces)  # type: ignore[attr-defined,unused-ignore]
        except OSError:
            # Full, or gone: the transport finds out which.
            count = 0
        self.transport_buffers = count < size
        if self.transport_buffers:
            self.transport.write(b"".join(pieces)[count:])
            self.lifecycle.send_timeout.watch()

    def write_large(self, pieces: list[bytes | memoryview]) -> None:
        """Write as much of large output as the socket takes, and pass the rest to the transport bit by bit."""
        if self.large_output is not None:
            self.large_output.add(pieces)
            return
        at: i64 = 0
        if self.descriptor >= 0 and not (self.transport_buffers and self.transport.get_write_buffer_size()):
            try:
                written: i64 = os.writev(int(self.descriptor), pieces[:MOST_PIECES])  # type: ignore[attr-defined,unused-ignore]
            except OSError:
                # Full, or gone: the transport finds out which.
                written = 0
            while at < len(pieces) and written >= len(pieces[at]):
                written -= len(pieces[at])
                at += 1
            if written:
                self.transport.write(memoryview(pieces[at])[written:])
                at += 1
        self.transport_buffers = True
        self.large_output = LargeOutput(self, pieces[at:])
        self.large_output.proceed()
        self.lifecycle.send_timeout.watch()

    def unread_bytes(self) -> i64:
        """Return the bytes of written output that the socket has not taken yet."""
        unread: i64 = self.transport.get_write_buffer_size()
        return unread if self.large_output is None else unread + self.large_output.size

    def unsent_bytes(self) -> int:
        """Return the bytes of output that the socket has not taken yet, those included that are not written yet."""
        return int(self.out_bytes + self.unread_bytes())

    def on_write_buffer_full(self) -> None:
        """Pause deliveries to this client: the write buffer has reached its high-water mark."""
        self.write_buffer_full = True
        self.deliveries_paused = True
        self.lifecycle.send_timeout.watch()

    def on_write_buffer_low(self) -> None:
        """Pass on large output, or else resume deliveries: the write buffer is below its low-water mark again."""
        self.write_buffer_full = False
        self.lifecycle.send_timeout.on_drained()
        if self.large_output is None:
            self.resume_deliveries()
        elif not self.large_output.is_scheduled:
            self.large_output.proceed()

    def resume_deliveries(self) -> None:
        """Resume deliveries to this client, whose output the transport has got, and written most of it.

        Resume processing the client's frames, too, if that was paused because more than UNREAD_LIMIT was unread.
        """
        self.deliveries_paused = False
        if self.reads_paused & CLIENT_NOT_READING:
            self.resume_reads(CLIENT_NOT_READING)
        for channel in list(self.channels.values()):
            channel.wake_all()

    # -- listings

    def describe(self) -> SessionDescription:
        """Return the state of the connection, and what client and broker have agreed."""
        return self.lifecycle.describe()

    def pending_work(self) -> str:
        """Return which work is unfinished: `output for` the client, `input from` it; empty for none."""
        return self.lifecycle.pending_work()

    def held_messages(self) -> Iterator[list[Message]]:
        """Yield the messages of each channel that are unacknowledged, or settled in a transaction not committed yet."""
        for channel in list(self.channels.values()):
            yield channel.held_messages()

    def shown_name(self) -> str:
        """Return the connection's name as RabbitMQ forms it: client address `->` broker address."""
        ends = self.transport.get_extra_info
        return connection_name(ends("peername"), ends("sockname"))

    # -- consumers and the end

    def stop_reading(self) -> None:
        """Read the client no more, because the broker stops."""
        self.pause_reads(STOPPING)

    def shut_down(self, reason: AmqpError) -> None:
        """Send connection.close, and end the connection."""
        self.lifecycle.shut_down(reason)

    def notify_consumer_cancelled(self, number: i64, tag: bytes) -> None:
        """Send basic.cancel for a consumer that the broker has ended, if the client supports that.

        https://www.rabbitmq.com/docs/consumer-cancel

        :param number: channel of the consumer.
        :param tag: its consumer tag.
        """
        if self.supports_cancel and self.phase < LINGERING:
            encoded = frame(int(number), "basic.cancel", tag, True)
            held = self.held_cancels
            if held is None:
                self.send(encoded)
            else:
                held.append(encoded)

    def cancel_consumers(self) -> None:
        """Cancel the consumers of all channels, before unacknowledged messages are requeued.

        Otherwise a requeued message could go to another consumer of this connection, which is about to end.
        """
        for channel in list(self.channels.values()):
            channel.cancel_consumers()

    def forget_target(self) -> None:
        """Decode the method frame of the next publish again, because channels or alarms have changed."""
        last = self.last_target
        if last is not None:
            last.count_publishes()
            self.last_target = None
        self.targets.clear()

    def release_channels(self) -> None:
        """Cancel consumers, then requeue unacknowledged messages, then delete exclusive queues.

        What takes longer than a slice is done as bulk work. It is called when connection.close is sent, or the
        connection is lost; the socket may stay open for a while.
        """
        self.forget_target()
        self.scheduled_confirms.clear()
        self.cancel_consumers()
        channels = list(self.channels.values())
        self.channels.clear()
        channels.reverse()
        bulk_work = self.node.virtual_hosts.bulk_work
        bulk_work.run(self, lambda end: self.close_channels(channels, end))

    def close_channels(self, channels: list[Channel], end: float) -> bool:
        """Close channels of the ended connection until a time; return True if none is left.

        Their unacknowledged messages are requeued next, and the exclusive queues of the connection are deleted then.

        :param channels: the channels in reverse order; those that are closed are removed.
        :param end: the time by `time.monotonic()`.
        """
        while channels:
            channels.pop().close()
            if channels and time.monotonic() >= end:
                return False
        self.node.virtual_hosts.bulk_work.later(self, self.delete_exclusive_queues)
        return True

    def delete_exclusive_queues(self, end: float) -> bool:
        """Delete exclusive queues of the ended connection until a time; return True if none is left.

        :param end: the time by `time.monotonic()`.
        """
        declarations = self.node.vhosts.get(self.vhost)
        return declarations is None or declarations.delete_exclusive_queues(self, end)
