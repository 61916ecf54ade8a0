"""Publisher confirms: publishes messages and awaits their confirms, with a limit to the number of unconfirmed messages.

Returned messages are assigned to their publishes; after a lost connection, unconfirmed messages are published again.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from warren.sdk.consume.delivery import REPUBLISHED, RETURN_TOKEN
from warren.sdk.errors import (
    ConfigError,
    Nacked,
    PublishError,
    PublishTimeout,
    TransportUnavailable,
    Unroutable,
    WarrenError,
)
from warren.sdk.publish.outgoing import Outgoing
from warren.sdk.publish.returned_messages import returned_message
from warren.sdk.publish.topology_recovery import TopologyRecovery
from warren.sdk.topology.declarable import Declarable
from warren.sdk.transport.data_channel import DataChannel

WINDOW = 1000
WINDOW_BYTES = 16 * 1024 * 1024
"""Largest total of unconfirmed bodies, in bytes; a single message may be larger."""


@dataclass(slots=True)
class PublisherStatistics:
    """Counts of published messages since the App started.

    :ivar unconfirmed: messages that wait for their confirm now.
    :ivar blocked_seconds: total time in which the broker blocked publishers (`connection.blocked`).
    """

    published: int = 0
    confirmed: int = 0
    nacked: int = 0
    returned: int = 0
    timed_out: int = 0
    republished: int = 0
    unconfirmed: int = 0
    blocked_seconds: float = 0.0


class PendingConfirm:
    """A written message that waits for its publisher confirm.

    :ivar deadline: time of the event loop at which the publish times out.
    :ivar future: completed with the outcome; the caller of the publish awaits it.
    :ivar error: set if the broker returned the message; the confirm follows.
    :ivar missing: items that the App declares again after this error, before it publishes the message once more.
    :ivar recovered: True from then on: a second error is the outcome.
    """

    __slots__ = (
        "before_write", "deadline", "error", "future", "identity", "missing", "outgoing", "recovered",
    )  # fmt: skip

    def __init__(
        self,
        outgoing: Outgoing,
        deadline: float,
        future: asyncio.Future[None],
        before_write: Callable[[], None] | None,
    ) -> None:
        self.outgoing: Outgoing = outgoing
        self.deadline: float = deadline
        self.future: asyncio.Future[None] = future
        self.before_write: Callable[[], None] | None = before_write
        self.error: Unroutable | None = None
        self.identity: str | tuple[str, int] = ""
        self.missing: Sequence[Declarable] = ()
        self.recovered: bool = False

    def settle(self, error: Exception | None) -> None:
        """Complete the future with the error, or successfully if `error` is None; do nothing if it is done."""
        if self.future.done():
            return
        if error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(error)


class Publisher:
    """Publisher on one channel in confirm mode, for all tasks of an App.

    A returned message is assigned to its publish by its message id; the broker sends the return before the
    confirm. If another message with the same id is in flight, the later one carries the private header
    `warren-token`, a number that identifies its publish in a return.

    If the broker closes the channel over a message without naming it, the messages in flight
    are published again one at a time, until the one that closes the channel is alone: it ends
    with the outcome `refused`, the others by their confirms.

    A message whose queue, exchange or binding was deleted after the App had declared it is published a second time, after
    a `TopologyRecovery` has declared them again.

    :param window: largest number of messages that wait for their confirm; further publishes wait.
    :param on_return: called with each returned message, also if nobody awaits its publish any more.
    :param recovery: declares deleted items again; None if nothing is declared again.
    """

    def __init__(
        self,
        *,
        window: int,
        on_return: Callable[[Unroutable], None],
        recovery: TopologyRecovery | None = None,
    ) -> None:
        self._window = window
        self._on_return = on_return
        self._recovery = recovery
        self._loop = asyncio.get_running_loop()
        self._channel: DataChannel | None = None
        self._unconfirmed_channel: DataChannel | None = None
        self._in_flight: dict[int, PendingConfirm] = {}
        self._by_identity: dict[str | tuple[str, int], PendingConfirm] = {}
        self._bytes = 0
        self._sequence = 0
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        """A heap of waiting publishes, ordered by arrival."""
        self._places = itertools.count()
        self._awaiting_republish: deque[PendingConfirm] = deque()
        """Unconfirmed messages of a lost channel, in their order."""
        self._recovering: set[PendingConfirm] = set()
        """Messages that are published again when their deleted topology has been declared."""
        self._one_at_a_time = False
        """True if the broker closed the channel because of an unknown one of the unconfirmed messages;
        they are then republished one at a time."""
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self.blocked: str | None = None
        """The broker's reason for blocking publishers (`connection.blocked`); None while it does not block them."""
        self._blocked_until = self._loop.time()
        """Time of the event loop up to which `blocked_seconds` is counted."""
        self.statistics: PublisherStatistics = PublisherStatistics()

    @property
    def attached(self) -> bool:
        """True if there is an open channel."""
        return self._channel is not None and self._channel.usable

    def attach(self, confirmed: DataChannel) -> None:
        """Publish on this channel from now on.

        The messages that a lost channel left unconfirmed are published again first, in their order.
        """
        confirmed.on_confirm = self._confirm
        confirmed.on_return = self._return
        self._channel = confirmed
        self._sequence = 0
        self._resume()
        self._settled()

    def attach_unconfirmed(self, channel: DataChannel) -> None:
        """Use this channel from now on for publishes without confirms."""
        self._unconfirmed_channel = channel
        self._wake()

    def detach(self) -> None:
        """Stop using the channel, which is lost; keep the unconfirmed messages for the next one."""
        self._channel = None
        self._awaiting_republish.extendleft(reversed(self._in_flight.values()))
        self._in_flight.clear()
        self._by_identity.clear()
        self._bytes = 0
        self._idle.set()

    def refused(self, error: WarrenError) -> None:
        """Fail the publishes because of which the broker closed the channel, so that they are not published again.

        If the reply text names an exchange that is missing or forbidden, these are all
        messages to that exchange. Otherwise it is the only message in flight; if there are
        several, none is failed, and they are republished one at a time.

        If the App has declared the missing exchange, its messages are not failed the first time: they are published again
        after the exchange and its bindings have been declared again.

        :param error: error with the broker's reply text.
        """
        missing = _missing_exchange(error)
        named = re.search(r"access to exchange '([^']*)'", str(error))
        exchange = missing if named is None else named[1]
        in_flight = list(self._in_flight.items())
        if exchange is not None:
            guilty = [each for each in in_flight if each[1].outgoing.exchange == exchange]
        else:
            guilty = in_flight if len(in_flight) == 1 else []
        for sequence, pending in guilty:
            refusal = PublishError(str(error), outcome="refused")
            refusal.reply_code = getattr(error, "reply_code", 0)
            if missing is not None and self._recovery is not None and not pending.recovered:
                outgoing = pending.outgoing
                pending.missing = self._recovery.after_refusal(outgoing.exchange, outgoing.routing_key)
            if pending.missing:
                self._in_flight.pop(sequence)
                self._recover(pending, refusal)
            else:
                pending.settle(refusal)
        self._one_at_a_time = self._one_at_a_time or not guilty

    def declare_missing(self, error: Exception) -> asyncio.Future[None]:
        """Declare again what a message of another channel has missed, if the App has declared it before.

        :param error: error of a message that was returned, or because of which the broker closed its channel.
        :returns: future that is completed when the declaration has succeeded or failed.
        """
        ended: asyncio.Future[None] = self._loop.create_future()
        missing: Sequence[Declarable] = ()
        exchange, key = "", ""
        if self._recovery is not None:
            if isinstance(error, Unroutable):
                exchange, key = error.exchange, error.routing_key
                missing = self._recovery.after_return(exchange, key)
            elif name := _missing_exchange(error):
                exchange = name
                missing = self._recovery.after_refusal(exchange, key)
        if self._recovery is None or not missing:
            ended.set_result(None)
        else:
            self._recovery.declare(
                exchange, key, missing, lambda failure: None if ended.done() else ended.set_result(None)
            )
        return ended

    def set_blocked(self, reason: str | None) -> None:
        """Stop or resume writing messages, after `connection.blocked` or `connection.unblocked`.

        :param reason: the broker's reason for blocking publishers; None if it no longer blocks them.
        """
        self._count_blocked()
        self.blocked = reason
        self._wake()

    async def publish(self, outgoing: Outgoing, timeout: float) -> None:
        """Publish and await the confirm, both within `timeout` seconds.

        :raises Unroutable: the broker returned the message. :raises Nacked: the broker refused it.
        :raises PublishTimeout: no confirm came in time.
        :raises TransportUnavailable: there was no connection in time; the message was not sent.
        """
        deadline = self._loop.time() + timeout
        channel = self._channel_with_room() if not self._waiters else None
        if channel is None:
            channel = await self._wait_for_room(deadline)
        await self._send(channel, outgoing, deadline, None).future

    async def submit(
        self, outgoing: Outgoing, timeout: float, before_write: Callable[[], None] | None = None
    ) -> asyncio.Future[None]:
        """Write the message as soon as there is a connection and room in the window; return the future of its confirm.

        :param timeout: seconds for the write and the confirm together.
        :param before_write: called directly before each write, also before the message is published again because its
            channel was lost; if it raises, nothing is written, and its error is the outcome.
        """
        deadline = self._loop.time() + timeout
        channel = self._channel_with_room() if not self._waiters else None
        if channel is None:
            channel = await self._wait_for_room(deadline)
        if before_write is not None:
            try:
                before_write()
            except BaseException:
                self._wake()
                raise
        return self._send(channel, outgoing, deadline, before_write).future

    async def publish_unconfirmed(self, outgoing: Outgoing, timeout: float) -> None:
        """Publish without a confirm; return when the message is in the write buffer.

        Waits only while there is no channel or no room to write, or while the
        write buffer is above its high-water mark.

        :param timeout: seconds for this wait.
        :raises TransportUnavailable: if there is no connection until the timeout, or it is lost during the wait.
        :raises PublishTimeout: if the broker blocks publishers, or does not read, until the timeout.
        :raises ConfigError: if AMQP cannot encode a property or header.
        """
        deadline = self._loop.time() + timeout
        while (
            (channel := self._unconfirmed_channel) is None
            or not channel.usable
            or self._channel_with_room() is None
        ):
            await self._wait_for_room(deadline)
            if self._unconfirmed_channel is None or not self._unconfirmed_channel.usable:
                # There is room, but the channel without confirms is being replaced.
                await asyncio.sleep(0.01)
        # This publish takes no place in the window, and no confirm will wake the next waiter.
        self._wake()
        self.statistics.published += 1
        try:
            channel.publish(outgoing, False)
        except Exception as error:
            raise encoding_error(error) from error
        if not channel.congested:
            return
        try:
            async with asyncio.timeout_at(deadline):
                await channel.drain()
        except TimeoutError:
            raise PublishTimeout("the broker does not read") from None
        except OSError as error:
            raise TransportUnavailable(f"the connection was lost: {error}", outcome="unknown") from error

    def committed(self, count: int, returned: list[Unroutable]) -> None:
        """Count the messages of a committed transaction, and pass the returned ones to `on_return`."""
        self.statistics.published += count
        self.statistics.confirmed += count
        self.statistics.returned += len(returned)
        for error in returned:
            self._on_return(error)

    async def flush(self) -> None:
        """Wait until every published message is confirmed or has failed."""
        while self._in_flight or any(not pending.future.done() for pending in self._delayed()):
            if self._in_flight:
                await self._idle.wait()
            else:
                await asyncio.wait(
                    [pending.future for pending in self._delayed() if not pending.future.done()],
                    timeout=0.1,
                )

    def snapshot(self) -> PublisherStatistics:
        """Return the statistics, with the current number of unconfirmed messages and the time blocked so far."""
        self.statistics.unconfirmed = (
            len(self._in_flight) + len(self._awaiting_republish) + len(self._recovering)
        )
        self._count_blocked()
        return self.statistics

    def close(self) -> None:
        """Fail all publishes that wait for a confirm or for room; the outcome of written messages is unknown."""
        self.detach()
        if self._recovery is not None:
            self._recovery.close()
        for pending in self._delayed():
            pending.settle(TransportUnavailable("the App stopped before the confirm came", outcome="unknown"))
        self._awaiting_republish.clear()
        for _, waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(TransportUnavailable("the App stopped"))
        self._waiters.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _count_blocked(self) -> None:
        now = self._loop.time()
        if self.blocked is not None:
            self.statistics.blocked_seconds += now - self._blocked_until
        self._blocked_until = now

    # Window

    def _channel_with_room(self) -> DataChannel | None:
        """Return the channel if a message may be written now, otherwise None.

        None if there is no open channel, the broker blocks publishers, the window of unconfirmed messages is full, or
        messages of a lost channel have to be published again first.
        """
        channel = self._channel
        if channel is None or self._awaiting_republish or self.blocked is not None or not channel.usable:
            return None
        if len(self._in_flight) >= self._window or (self._bytes >= WINDOW_BYTES and self._in_flight):
            return None
        return channel

    async def _wait_for_room(self, deadline: float) -> DataChannel:
        """Wait until a message may be written, and return the channel; publishes are served in the order of arrival.

        :param deadline: time of the event loop.
        :raises TransportUnavailable: without a connection until the deadline.
        :raises PublishTimeout: if the window stayed full, or the broker blocked publishers.
        """
        # A waiter that was woken and found no room keeps its place.
        place = next(self._places)
        while True:
            waiter = self._loop.create_future()
            heappush(self._waiters, (place, waiter))
            try:
                async with asyncio.timeout_at(deadline):
                    await waiter
            except TimeoutError:
                self._pass_on(waiter)
                raise self._why_not_sent() from None
            except asyncio.CancelledError:
                self._pass_on(waiter)
                raise
            finally:
                if waiter.cancelled() and (place, waiter) in self._waiters:
                    self._waiters.remove((place, waiter))
                    heapify(self._waiters)
            channel = self._channel_with_room()
            if channel is not None:
                if len(self._in_flight) + 1 < self._window:
                    self._wake()
                return channel

    def _pass_on(self, waiter: asyncio.Future[None]) -> None:
        """Wake the next publish that waits for room, if this one was woken but has timed out or been cancelled.

        Otherwise the room that it was woken for would stay unused.

        :param waiter: the future that this publish awaited.
        """
        if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
            self._wake()

    def _why_not_sent(self) -> WarrenError:
        self.statistics.timed_out += 1
        if self._channel is None or not self._channel.usable:
            return TransportUnavailable("there was no connection to the broker within the deadline")
        reason = (
            f"the broker blocks publishers ({self.blocked})" if self.blocked else "the window stayed full"
        )
        return PublishTimeout(f"{reason} until the deadline; the message was not sent", outcome="not_sent")

    def _wake(self) -> None:
        """Wake as many of the publishes that wait for room as the window can take.

        Each of them wakes further ones when it runs, if room is left.
        """
        room = self._window - len(self._in_flight)
        while self._waiters and room > 0 and self._channel_with_room() is not None:
            _, waiter = heappop(self._waiters)
            if not waiter.done():
                waiter.set_result(None)
                room -= 1

    # In flight

    def _send(
        self,
        channel: DataChannel,
        outgoing: Outgoing,
        deadline: float,
        before_write: Callable[[], None] | None,
    ) -> PendingConfirm:
        pending = PendingConfirm(outgoing, deadline, self._loop.create_future(), before_write)
        self.statistics.published += 1
        timer = self._timer
        if timer is None or deadline < timer.when():
            self._set_timer(deadline)
        self._write(channel, pending)
        return pending

    def _write(self, channel: DataChannel, pending: PendingConfirm) -> None:
        outgoing = pending.outgoing
        if outgoing.deadline is not None:
            left = max(0.0, outgoing.deadline - self._loop.time())
            outgoing.set("expiration", str(int(left * 1000)))
        sequence = self._sequence + 1
        identity: str | tuple[str, int]
        identity = message_id = str(outgoing.properties.get("message_id", ""))
        if identity in self._by_identity:
            outgoing.set_header(RETURN_TOKEN, sequence)
            identity = (message_id, sequence)
        elif outgoing.headers:
            # The header may come from a forwarded delivery or an earlier attempt.
            outgoing.set_header(RETURN_TOKEN, None)
        try:
            channel.publish(outgoing, outgoing.mandatory)
        except Exception as error:
            # Nothing was written, and the broker counts nothing. Any exception must end here: a sequence number that
            # is spent without a write would assign all later confirms to the wrong publishes.
            pending.settle(encoding_error(error))
            self._settled()
            return
        self._sequence = sequence
        pending.identity = identity
        self._by_identity[identity] = pending
        if not self._in_flight:
            self._idle.clear()
        self._in_flight[sequence] = pending
        self._bytes += len(outgoing.body)

    def _resume(self) -> None:
        """Publish again the messages that a lost channel left unconfirmed.

        All are written at once; or, if an unknown one of them makes the broker
        close the channel, one at a time to find it.
        """
        channel = self._channel
        while (
            self._awaiting_republish and channel is not None and not (self._one_at_a_time and self._in_flight)
        ):
            pending = self._awaiting_republish.popleft()
            if pending.future.done():
                continue
            if not self._may_be_written(pending):
                continue
            # A return on the lost channel says nothing about this attempt.
            pending.error = None
            pending.missing = ()
            pending.outgoing.set_header(REPUBLISHED, True)
            self.statistics.republished += 1
            self._write(channel, pending)
        if not self._awaiting_republish and not self._in_flight:
            self._one_at_a_time = False

    def _may_be_written(self, pending: PendingConfirm) -> bool:
        """Call `before_write` of a message that is to be published again; if it raises, fail the publish, and return
        False.
        """
        if pending.before_write is not None:
            try:
                pending.before_write()
            except Exception as error:
                pending.settle(error)
                return False
        return True

    def _return(self, method: bytes, header: bytes, body: bytes) -> None:
        error, token = returned_message(method, header, body)
        message_id = str(error.properties.get("message_id", ""))
        pending = self._by_identity.get(message_id if token is None else (message_id, token))
        if pending is not None:
            pending.error = error
            if self._recovery is not None:
                if pending.recovered:
                    self._recovery.note_failure(error.exchange, error.routing_key)
                else:
                    pending.missing = self._recovery.after_return(error.exchange, error.routing_key)
                if pending.missing:
                    return
        self._report_return(error)

    def _report_return(self, error: Unroutable) -> None:
        self.statistics.returned += 1
        self._on_return(error)

    def _delayed(self) -> Iterable[PendingConfirm]:
        """Return the unconfirmed messages that are not written now: those of a lost channel, and those whose topology is
        being declared.
        """
        return itertools.chain(self._awaiting_republish, self._recovering)

    def _recover(self, pending: PendingConfirm, error: WarrenError) -> None:
        """Declare the message's missing exchanges, queues and bindings again, then publish it once more.

        :param error: outcome of the publish if they cannot be declared.
        """
        assert self._recovery is not None
        missing, pending.missing = pending.missing, ()
        pending.recovered = True
        self._recovering.add(pending)

        def resume(failure: Exception | None) -> None:
            self._recovering.discard(pending)
            if pending.future.done():
                return
            if failure is not None:
                if isinstance(error, Unroutable):
                    self._report_return(error)
                pending.settle(error)
                return
            pending.error = None
            channel = self._channel
            if channel is None or not channel.usable or self._awaiting_republish:
                self._awaiting_republish.append(pending)
            elif self._may_be_written(pending):
                self._write(channel, pending)

        outgoing = pending.outgoing
        self._recovery.declare(outgoing.exchange, outgoing.routing_key, missing, resume)

    def _confirm(self, sequence: int, multiple: bool, ack: bool) -> None:
        in_flight, by_identity = self._in_flight, self._by_identity
        first = next(iter(in_flight), sequence) if multiple else sequence
        # 0 with `multiple` covers all that is outstanding (AMQP 0-9-1, basic.ack).
        last = min(sequence or self._sequence, self._sequence)
        for known in range(first, last + 1):
            pending = in_flight.pop(known, None)
            if pending is None:
                continue
            by_identity.pop(pending.identity, None)
            self._bytes -= len(pending.outgoing.body)
            if ack:
                if pending.missing and pending.error is not None:
                    self._recover(pending, pending.error)
                    continue
                self.statistics.confirmed += 1
                pending.settle(pending.error)
            else:
                self.statistics.nacked += 1
                pending.settle(Nacked("the broker refused the message: a queue is full, or its disk failed"))
        self._settled()

    def _settled(self) -> None:
        if not self._in_flight:
            self._idle.set()
            if self._one_at_a_time:
                self._resume()
        if self._waiters:
            self._wake()

    # Deadlines

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        """Fail the publishes whose deadline has passed with `PublishTimeout`, and set the timer to the next deadline.

        One timer serves all messages, because nearly every message is confirmed long before its deadline.
        """
        self._timer = None
        now = self._loop.time()
        earliest = None
        for pending in [*self._in_flight.values(), *self._delayed()]:
            if pending.future.done():
                continue
            if pending.deadline > now:
                earliest = pending.deadline if earliest is None else min(earliest, pending.deadline)
                continue
            self.statistics.timed_out += 1
            pending.settle(PublishTimeout(self._why_not_confirmed()))
        if earliest is not None:
            self._set_timer(earliest)

    def _why_not_confirmed(self) -> str:
        why = f"; the broker blocks publishers ({self.blocked})" if self.blocked else ""
        return f"no confirm came within the deadline; the message may have arrived{why}"


def _missing_exchange(error: Exception) -> str | None:
    """Return the exchange that the broker's text names as missing; None if it names none."""
    named = re.search(r"no exchange '([^']*)'", str(error))
    return None if named is None else named[1]


def encoding_error(error: Exception) -> ConfigError:
    """Return the error for a value that AMQP cannot encode; nothing of its message was written."""
    return ConfigError(
        f"a header or property cannot be written to the wire: {str(error) or type(error).__name__}"
    )
