"""Transfer of a shovel: from the connection of source and destination to the loss of one of them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from warren.broker.model.clock import Clock, Timer
from warren.broker.shovel.amqp_client import CHANNEL, AmqpClient, ChannelClosed, ConnectionEnded
from warren.broker.shovel.definition import (
    DELETE_AFTER_FLOOR,
    LOCAL,
    QUEUE_LENGTH,
    AckMode,
    ShovelDefinition,
)
from warren.broker.shovel.message_rewriter import MessageRewriter
from warren.broker.shovel.shovel_uri import ShovelUri, shown_uri
from warren.wire.field_tables import TableError
from warren.wire.methods import DELIVER
from warren.wire.reply_codes import Reply

if TYPE_CHECKING:
    from warren.broker.connection.broker_node import BrokerNode

logger = logging.getLogger(__name__)

REFUSAL_SECONDS: Final = 1.0
"""Seconds until messages that the destination has refused are requeued at the source. RabbitMQ requeues them at once, and
forwards them again and again as fast as it can."""
DRAIN_SECONDS: Final = 2.0
"""Seconds that a shovel which is stopped waits for outstanding confirms of the destination."""
UNBOUNDED_PENDING: Final = 1000
"""Messages in memory of a blocked shovel without a limit of its own, beyond which the source is not read."""

Remaining: TypeAlias = "int | None"
"""Number of messages that a shovel still has to forward; None if it is unlimited."""


class TransferFailed(Exception):
    """A transfer could not start, or has ended. The text is RabbitMQ's reason in the status of the shovel.

    :param detail: one line for the log: what happened, without credentials.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason)
        self.detail = detail


class Transfer:
    """Transfer of messages over one pair of connections.

    :param name: name of the shovel.
    :param vhost: virtual host that it is defined in.
    :param cluster: name of the broker's cluster, for forward headers.
    """

    def __init__(
        self,
        node: BrokerNode,
        definition: ShovelDefinition,
        name: str,
        vhost: str,
        cluster: str,
        clock: Clock,
    ) -> None:
        self.remaining: Remaining = None
        """Messages until the shovel deletes itself that the destination has not confirmed yet."""
        self.remaining_unacked: Remaining = None
        """Messages until the shovel deletes itself that are not forwarded yet."""
        self.forwarded = 0
        """Messages that were published to the destination."""
        self.pending: deque[tuple[bytes, bytes, bytes]] = deque()
        """Messages that wait because the destination has blocked the connection."""
        self.uris = ("", "")
        """Source and destination without credentials, once connected."""
        self._node = node
        self._definition = definition
        self._name = name
        self._vhost = vhost
        self._cluster = cluster
        self._clock = clock
        self._source = AmqpClient(node.loop, f"Shovel {name}")
        self._destination = AmqpClient(node.loop, f"Shovel {name}")
        self._rewriter: MessageRewriter | None = None
        self._done: asyncio.Future[None] = node.loop.create_future()
        """Resolved when the shovel has forwarded all that it should."""
        self._no_ack = False
        self._sequence = 0
        """Publishes in confirm mode so far."""
        self._unconfirmed: dict[int, int] = {}
        """Delivery tags at the source by the numbers of the publishes that are not confirmed, in their order."""
        self._all_confirmed: asyncio.Future[None] | None = None
        self._refused: list[int] = []
        """Delivery tags of messages that the destination has refused, to be requeued."""
        self._refusal_timer: Timer | None = None
        self._duration_timer: Timer | None = None
        self._published_tag = 0
        """Delivery tag of the last message that was published and is not acknowledged yet; 0 if there is none."""
        self._consumer_tag = b""
        self._reading_paused = False
        self._stopping = False

    @property
    def blocked_status(self) -> str:
        """State of a running transfer: `running`, `flow` if the destination reads slowly, or `blocked`."""
        if self._destination.blocked_reason is not None:
            return "blocked"
        return "flow" if self._destination.writing_paused else "running"

    # -- start and end

    async def start(self) -> None:
        """Connect source and destination, declare what is missing, and begin to consume.

        :raises TransferFailed: if that fails.
        """
        definition = self._definition
        try:
            source = await self._connect(self._source, definition.source.uris, definition.source.protocol)
        except ConnectionEnded as error:
            raise TransferFailed("failed to connect to source", str(error)) from None
        try:
            destination = await self._connect(
                self._destination, definition.destination.uris, definition.destination.protocol
            )
        except ConnectionEnded as error:
            raise TransferFailed("failed to connect to destination", str(error)) from None
        self.uris = (source, destination)
        try:
            await self._prepare_destination()
            await self._prepare_source()
        except ConnectionEnded as error:
            raise TransferFailed("failed to set up topology", str(error)) from None

    async def _connect(self, client: AmqpClient, uris: Sequence[ShovelUri], protocol: str) -> str:
        """Connect to one of several URIs, in random order; return the URI without credentials.

        :raises ConnectionEnded: with the reason of each URI, if none can be connected.
        """
        reasons: list[str] = []
        for uri in random.sample(uris, len(uris)):
            attempt = client if not reasons else self._renewed(client)
            try:
                await attempt.open(self._node, uri, in_process=protocol == LOCAL)
            except ConnectionEnded as error:
                reasons.append(f"{shown_uri(uri.text)}: {error}")
            else:
                return "" if protocol == LOCAL else shown_uri(uri.text)
        raise ConnectionEnded("; ".join(reasons) or "the list of URIs is empty")

    def _renewed(self, client: AmqpClient) -> AmqpClient:
        """Return a new client in the place of one that could not connect."""
        new = AmqpClient(self._node.loop, f"Shovel {self._name}")
        if client is self._source:
            self._source = new
        else:
            self._destination = new
        return new

    async def run(self) -> None:
        """Forward messages until all that should be forwarded are.

        :raises TransferFailed: if a connection is lost.
        """
        source, destination = self._source.ended, self._destination.ended
        await asyncio.wait((source, destination, self._done), return_when=asyncio.FIRST_COMPLETED)
        if self._done.done():
            return
        end, ended = ("source", source) if source.done() else ("destination", destination)
        raise TransferFailed(ended.result(), f"{end}: {ended.result()}")

    async def close(self) -> None:
        """Close both connections. What is not acknowledged at the source by then is requeued there."""
        for timer in (self._refusal_timer, self._duration_timer):
            if timer is not None:
                timer.cancel()
        await self._drain()
        self._destination.on_flow = _nothing
        # First the destination: it has received all publishes when it answers.
        await self._destination.close()
        self._acknowledge_published()
        self._requeue_refused()
        await self._source.close()

    async def _drain(self) -> None:
        """Consume no more, forward what was delivered, and wait a moment for the confirms."""
        ended = (self._source.ended, self._destination.ended)
        if not any(end.done() for end in ended) and not self._reading_paused:
            with contextlib.suppress(TimeoutError, ConnectionEnded):
                async with asyncio.timeout(DRAIN_SECONDS):
                    if self._consumer_tag:
                        await self._source.call("basic.cancel", self._consumer_tag, False)
                    if self._unconfirmed:
                        self._all_confirmed = self._node.loop.create_future()
                        await asyncio.wait((self._all_confirmed, *ended), return_when=asyncio.FIRST_COMPLETED)
        self._stopping = True

    # -- topology

    async def _prepare_destination(self) -> None:
        definition, client = self._definition.destination, self._destination
        if definition.queue is not None:
            await _ensure_queue(
                client, definition.queue, definition.queue_arguments, definition.is_predeclared
            )
        self._rewriter = MessageRewriter(
            self._definition.source,
            definition,
            self._name,
            self._vhost,
            self._cluster,
            self.uris,
            CHANNEL,
            client.frame_max,
            self._clock.wall,
        )
        if self._definition.ack_mode is AckMode.ON_CONFIRM:
            await client.call("confirm.select", False)
        client.listen(_DestinationListener(self))
        client.on_flow = self._on_flow

    async def _prepare_source(self) -> None:
        definition, client = self._definition.source, self._source
        queue = definition.queue
        if queue:
            await _ensure_queue(client, queue, definition.queue_arguments, definition.is_predeclared)
        else:
            declared = await client.call("queue.declare", 0, b"", False, False, True, False, False, b"")
            queue = declared.data("queue")
            await client.call(
                "queue.bind", 0, queue, definition.exchange, definition.exchange_key, False, b""
            )
        if definition.delete_after == QUEUE_LENGTH:
            found = await client.call("queue.declare", 0, queue, True, False, False, False, False, b"")
            self.remaining = found.number("message_count")
        else:
            self.remaining = definition.delete_after
        self.remaining_unacked = self.remaining
        # A consumer without acknowledgements would get more messages than should be moved, and lose them.
        self._no_ack = self._definition.ack_mode is AckMode.NO_ACK and self.remaining is None
        if not self._no_ack:
            await client.call("basic.qos", 0, definition.prefetch, False)
        if self.remaining == 0:
            self._finish()
            return
        if definition.delete_after_seconds is not None:
            self._duration_timer = self._after(
                max(definition.delete_after_seconds, DELETE_AFTER_FLOOR), self._finish
            )
        client.listen(_SourceListener(self))
        reply = await client.call(
            "basic.consume",
            0,
            queue,
            definition.consumer_tag,
            False,
            self._no_ack,
            False,
            False,
            definition.consumer_arguments,
        )
        self._consumer_tag = reply.data("consumer_tag")

    # -- messages

    def on_delivery(self, deliver: bytes, header: bytes, body: bytes) -> None:
        """Forward a message, or keep it while the destination has blocked the connection."""
        if int.from_bytes(deliver[2:4], "big") != DELIVER or self._stopping:
            return
        if self.remaining_unacked == 0:
            # It is requeued at the end.
            return
        if self._destination.blocked_reason is None and not self.pending:
            self._forward(deliver, header, body)
            return
        self.pending.append((deliver, header, body))
        if len(self.pending) >= UNBOUNDED_PENDING:
            self._control_reading()

    def _forward(self, deliver: bytes, header: bytes, body: bytes) -> None:
        rewriter = self._rewriter
        assert rewriter is not None
        tag_at = 5 + deliver[4]
        tag = int.from_bytes(deliver[tag_at : tag_at + 8], "big")
        try:
            frames = rewriter.publish_frames(deliver, header, body)
        except (TableError, ValueError) as error:
            # The properties are not AMQP's. The destination would refuse them.
            logger.warning(
                "event=shovel.message_refused shovel=%r vhost=%r reason=%r",
                self._name,
                self._vhost,
                str(error),
            )
            self._on_refused([tag])
            return
        self._destination.write(frames)
        self.forwarded += 1
        if self.remaining_unacked is not None:
            self.remaining_unacked -= 1
        if self._definition.ack_mode is AckMode.ON_CONFIRM:
            self._sequence += 1
            self._unconfirmed[self._sequence] = tag
            return
        if self._refused:
            self._source.send("basic.ack", tag, False)
        elif not self._no_ack:
            if not self._published_tag:
                self._node.loop.call_soon(self._acknowledge_published)
            self._published_tag = tag
        self._count_down(1)

    def on_confirm(self, sequence: int, multiple: bool, ack: bool) -> None:
        """Acknowledge at the source what the destination has confirmed; requeue what it has refused."""
        if not multiple:
            tag = self._unconfirmed.pop(sequence, None)
            tags = [] if tag is None else [tag]
        else:
            covered = list(itertools.takewhile(lambda number: number <= sequence, self._unconfirmed))
            tags = [self._unconfirmed.pop(number) for number in covered]
        if not tags:
            return
        if not ack:
            self._on_refused(tags)
        elif multiple and not self._refused:
            # All deliveries before the last one are settled, because they were published in their order.
            self._source.send("basic.ack", tags[-1], True)
        else:
            for tag in tags:
                self._source.send("basic.ack", tag, False)
        self._count_down(len(tags))
        if not self._unconfirmed and self._all_confirmed is not None and not self._all_confirmed.done():
            self._all_confirmed.set_result(None)

    def _acknowledge_published(self) -> None:
        """Acknowledge all messages up to the last one that was published. None of them is in `_refused`."""
        tag, self._published_tag = self._published_tag, 0
        if tag:
            self._source.send("basic.ack", tag, True)

    def _on_refused(self, tags: list[int]) -> None:
        """Requeue messages at the source after a moment."""
        self._acknowledge_published()
        self._refused += tags
        if self._refusal_timer is None and not self._stopping:
            self._refusal_timer = self._after(REFUSAL_SECONDS, self._requeue_refused)

    def _after(self, seconds: float, call: Callable[[], None]) -> Timer:
        return self._clock.call_at(self._clock.now() + seconds, call)

    def _requeue_refused(self) -> None:
        self._refusal_timer = None
        refused, self._refused = self._refused, []
        for tag in refused:
            self._source.send("basic.nack", tag, False, True)

    def _count_down(self, count: int) -> None:
        if self.remaining is not None:
            self.remaining = max(0, self.remaining - count)
            if not self.remaining:
                self._finish()

    def _finish(self) -> None:
        if not self._done.done():
            self._done.set_result(None)

    # -- flow control

    def _on_flow(self) -> None:
        """Forward what is pending if the destination takes messages again, and control the reading of the source."""
        while self.pending and self._destination.blocked_reason is None:
            if self._destination.writing_paused:
                break
            if self.remaining_unacked == 0:
                self.pending.clear()
                break
            self._forward(*self.pending.popleft())
        self._control_reading()

    def _control_reading(self) -> None:
        destination = self._destination
        pause = destination.writing_paused or (
            destination.blocked_reason is not None and len(self.pending) >= UNBOUNDED_PENDING
        )
        if pause == self._reading_paused:
            return
        self._reading_paused = pause
        if pause:
            self._source.pause_reading()
        else:
            self._source.resume_reading()


class _SourceListener:
    """Receiver of the messages of the source."""

    def __init__(self, transfer: Transfer) -> None:
        self.message = transfer.on_delivery

    def confirm(self, sequence: int, multiple: bool, ack: bool) -> None:
        """Ignore it: nothing is published at the source."""


class _DestinationListener:
    """Receiver of the confirms of the destination."""

    def __init__(self, transfer: Transfer) -> None:
        self.confirm = transfer.on_confirm

    def message(self, method: bytes, header: bytes, body: bytes) -> None:
        """Ignore it: nothing is consumed at the destination, and no publish is mandatory."""


def _nothing() -> None:
    return


async def _ensure_queue(client: AmqpClient, queue: bytes, arguments: bytes, is_predeclared: bool) -> None:
    """Check that a queue exists, or declare it.

    :raises ConnectionEnded: if it does not exist and is predeclared, or cannot be declared.
    """
    try:
        await client.call_apart("queue.declare", 0, queue, True, False, False, False, False, b"")
    except ChannelClosed as closed:
        if closed.code != Reply.NOT_FOUND or is_predeclared:
            raise
        await client.call_apart("queue.declare", 0, queue, False, True, False, False, False, arguments)
