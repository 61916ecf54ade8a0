"""One pair of connections of a migration, over which all its queues are moved, each on a channel of its own."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Final

from warren.broker.model.delivery_headers import EXPIRY_ARGUMENT
from warren.broker.shovel.amqp_client import AmqpClient, ChannelClosed, ConnectionEnded
from warren.broker.shovel.shovel_uri import ShovelUri
from warren.cli.migrate.broker_api import CONNECTION_NAME, EXCHANGE_PREFIX
from warren.cli.migrate.queue_move import MigrationRefused, MovedQueue, QueueMove
from warren.wire import field_tables
from warren.wire.reply_codes import Reply

FIRST_CHANNEL: Final = 3
"""Channel of the first queue; the lower ones are those of the client."""
IN_FLIGHT_BYTES: Final = 64 * 1024 * 1024
"""Bytes of bodies that are published and not confirmed, above which the source is not read."""
DRAIN_SECONDS: Final = 10.0
"""Seconds that a session which ends waits for outstanding confirms."""

_FRAME: Final = struct.Struct(">BHI")


class QueueInUse(Exception):
    """Error that the source refuses an exclusive consumer, as another client consumes from the queue."""


class SessionEnded(Exception):
    """Error that one of the connections has ended. The text is one line, with the side."""


class Session:
    """A connection to the source and one to the target.

    :param migration_id: id of the migration, for the headers of messages and the names of exchanges.
    :param window: most messages of a queue that may be published and not confirmed.
    :param impersonates: True if the user of the target may publish messages with any user_id.
    """

    def __init__(
        self,
        source: ShovelUri,
        target: ShovelUri,
        migration_id: str,
        window: int,
        impersonates: bool,
        on_copy: Callable[[MovedQueue, int], None],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.migration_id = migration_id
        self.moves: dict[str, QueueMove] = {}
        """Moves of the queues that have a consumer, by name."""
        self._uris = {"source": source, "target": target}
        name = f"{CONNECTION_NAME} {migration_id}"
        self._source = AmqpClient(self.loop, name)
        self._target = AmqpClient(self.loop, name)
        self._window = window
        self._target_user = (target.user or "guest").encode("utf-8", "surrogateescape")
        self._impersonates = impersonates
        self._on_copy = on_copy
        self._in_flight = 0
        self._reading_paused = False
        self._failure: asyncio.Future[Exception] = self.loop.create_future()

    @property
    def has_failed(self) -> bool:
        """True if nothing more may be published or acknowledged."""
        return self._failure.done() or self._source.ended.done() or self._target.ended.done()

    @property
    def is_idle(self) -> bool:
        """True if no message is on its way."""
        return not any(move.pending for move in self.moves.values())

    async def open(self) -> None:
        """Connect to both brokers.

        :raises SessionEnded: if one of them cannot be reached, or refuses the user.
        """
        for side, client in (("source", self._source), ("target", self._target)):
            try:
                await client.connect(self._uris[side])
            except ConnectionEnded as error:
                raise SessionEnded(f"{side}: {error}") from None
        self._target.on_flow = self._control_reading

    async def start(self, queue: MovedQueue) -> None:
        """Begin to move a queue.

        :raises QueueInUse: if another client consumes from it.
        :raises MigrationRefused: if a broker refuses something else.
        :raises SessionEnded: if a connection has ended.
        """
        channel = FIRST_CHANNEL + queue.number
        if channel > min(self._source.channel_max, self._target.channel_max):
            raise MigrationRefused(
                f"queue {queue.name!r} needs channel {channel}, which a broker does not allow:"
                " choose fewer queues with --queues"
            )
        exchange = f"{EXCHANGE_PREFIX}{self.migration_id}.{queue.number}".encode()
        name = queue.name.encode("utf-8", "surrogateescape")
        move = QueueMove(self, queue, channel, exchange, self._on_copy)
        side = "target"
        try:
            call = self._target.call
            await call("channel.open", b"", channel=channel)
            await call("confirm.select", False, channel=channel)
            durable, flags = False, (False, False, False)
            await call(
                "exchange.declare", 0, exchange, b"fanout", False, durable, *flags, b"", channel=channel
            )
            await call("queue.bind", 0, name, exchange, b"", False, b"", channel=channel)
            self._target.listen(move, channel)
            side = "source"
            await self._source.call("channel.open", b"", channel=channel)
            await self._source.call("basic.qos", 0, self._window, False, channel=channel)
            self._source.listen(move, channel)
            self.moves[queue.name] = move
            await self._consume(move, name)
        except ChannelClosed as closed:
            self.moves.pop(queue.name, None)
            if side == "source" and closed.code in (Reply.ACCESS_REFUSED, Reply.RESOURCE_LOCKED):
                await self._target.call("channel.close", int(Reply.SUCCESS), b"", 0, 0, channel=channel)
                raise QueueInUse(str(closed)) from None
            raise MigrationRefused(f"{side}: {closed}") from None
        except ConnectionEnded as error:
            raise SessionEnded(f"{side}: {error}") from None

    async def _consume(self, move: QueueMove, name: bytes) -> None:
        # With a single active consumer others only wait; an exclusive consumer is refused there.
        exclusive = not move.queue.is_single_active
        arguments = field_tables.encode({EXPIRY_ARGUMENT: True})
        reply = await self._source.call(
            "basic.consume",
            *(0, name, b"", False, False, exclusive, False, arguments),
            channel=move.channel,
        )
        move.consumer_tag = reply.data("consumer_tag")

    async def ready_messages(self, queue: str) -> int:
        """Return the number of ready messages of a queue of the source, 0 if it is gone.

        :raises SessionEnded: if the connection has ended.
        """
        name = queue.encode("utf-8", "surrogateescape")
        try:
            found = await self._source.call_apart(
                "queue.declare", 0, name, True, False, False, False, False, b""
            )
        except ChannelClosed:
            return 0
        except ConnectionEnded as error:
            raise SessionEnded(f"source: {error}") from None
        return found.number("message_count")

    # -- messages

    def may_publish_as(self, user: bytes) -> bool:
        """Return True if the target accepts messages with this user_id."""
        return self._impersonates or user == self._target_user

    def publish(self, channel: int, method: bytes, header: bytes, body: bytes) -> None:
        """Publish a message to the target."""
        parts = [method, _FRAME.pack(2, channel, len(header)), header, b"\xce"]
        size = self._target.frame_max - 8
        for start in range(0, len(body), size):
            piece = body[start : start + size]
            parts += (_FRAME.pack(3, channel, len(piece)), piece, b"\xce")
        self._target.write(b"".join(parts))
        self._in_flight += len(body)
        if self._in_flight > IN_FLIGHT_BYTES:
            self._control_reading()

    def acknowledge(self, channel: int, tag: int, size: int) -> None:
        """Acknowledge all messages up to a delivery tag at the source.

        :param size: bytes of their bodies.
        """
        self._source.send("basic.ack", tag, True, channel=channel)
        self._in_flight -= size
        if self._reading_paused:
            self._control_reading()

    def _control_reading(self) -> None:
        target = self._target
        pause = (
            target.writing_paused or target.blocked_reason is not None or self._in_flight > IN_FLIGHT_BYTES
        )
        if pause != self._reading_paused:
            self._reading_paused = pause
            if pause:
                self._source.pause_reading()
            else:
                self._source.resume_reading()

    # -- the end

    def fail(self, text: str) -> None:
        """End the migration with an error."""
        if not self._failure.done():
            self._failure.set_result(MigrationRefused(text))

    def end(self, text: str) -> None:
        """End the session, so that a new one is opened."""
        if not self._failure.done():
            self._failure.set_result(SessionEnded(text))

    async def wait(self, seconds: float) -> None:
        """Wait for some seconds, as long as both connections live.

        :raises SessionEnded: if one has ended.
        :raises MigrationRefused: if a new session would not help.
        """
        source, target, failure = self._source.ended, self._target.ended, self._failure
        await asyncio.wait((source, target, failure), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if failure.done():
            raise failure.result()
        for side, ended in (("source", source), ("target", target)):
            if ended.done():
                raise SessionEnded(f"{side}: {ended.result()}")

    async def drain(self) -> None:
        """Cancel the consumers, and wait for the confirms of what was published.

        :raises SessionEnded: if a connection ends meanwhile, or the confirms take too long.
        """
        try:
            for move in self.moves.values():
                await self._source.call("basic.cancel", move.consumer_tag, False, channel=move.channel)
        except ConnectionEnded as error:
            raise SessionEnded(f"source: {error}") from None
        end = self.loop.time() + DRAIN_SECONDS
        while not self.is_idle:
            if self.loop.time() > end:
                raise SessionEnded("target: the confirms take too long")
            await self.wait(0.05)

    async def delete_exchanges(self) -> None:
        """Delete the exchanges that were made on the target.

        :raises SessionEnded: if the connection has ended.
        """
        try:
            for move in self.moves.values():
                exchange = f"{EXCHANGE_PREFIX}{self.migration_id}.{move.queue.number}".encode()
                await self._target.call("exchange.delete", 0, exchange, False, False, channel=move.channel)
        except ConnectionEnded as error:
            raise SessionEnded(f"target: {error}") from None

    async def close(self) -> None:
        """Close both connections. What is not acknowledged at the source by then is requeued there."""
        await self._target.close("the migration ends")
        await self._source.close("the migration ends")
