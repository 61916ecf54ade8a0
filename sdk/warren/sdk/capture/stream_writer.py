"""Writer of captured events: publishes batches to the stream with confirms, and publishes unconfirmed batches again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from warren.core.capture_events import EventBatch
from warren.sdk.capture.captured_channel import CapturedChannel
from warren.sdk.capture.options import Capture, CaptureStatistics
from warren.sdk.capture.recorder import Recorder
from warren.sdk.errors import TopologyMismatch, Unroutable, WarrenError
from warren.sdk.logger import log
from warren.sdk.publish.outgoing import Outgoing
from warren.sdk.publish.publish_channels import PublishChannels
from warren.sdk.publish.publisher_confirms import Publisher
from warren.sdk.topology.declarations import Declaration
from warren.sdk.transport.control_channel import ControlChannel
from warren.sdk.transport.host_failover import Hosts
from warren.sdk.transport.session import ChannelFactory, Session
from warren.sdk.transport.supervised_connection import SupervisedConnection

WINDOW: Final = 32
"""Largest number of batches that wait for their confirm."""
CONFIRM_SECONDS: Final = 30.0
AGAIN_SECONDS: Final = 1.0
"""Seconds to wait before a batch that was not confirmed is published again."""


class CaptureStreamWriter:
    """Writer that records the life-cycle events of one run of an App and publishes them to the stream, on a connection
    of its own.

    :param declare: true to declare the stream if it does not exist; otherwise a missing stream is an error.
    :param on_change: called when its connection is there.
    """

    def __init__(
        self,
        options: Capture,
        hosts: Hosts,
        name: str,
        *,
        declare: bool,
        on_change: Callable[[], None],
        first_retry: float,
        longest_retry: float,
    ) -> None:
        self._options = options
        self._declare = declare
        self._publisher = Publisher(window=WINDOW, on_return=lambda error: None)
        self._publish_channels = PublishChannels(self._publisher, lambda: None)
        self._link = SupervisedConnection(
            hosts,
            f"{name} capture",
            setup=self._set_up,
            on_up=self._connected,
            on_down=self._publish_channels.detach,
            on_blocked=self._publisher.set_blocked,
            first_retry=first_retry,
            longest_retry=longest_retry,
        )
        self._on_change = on_change
        self._writing: set[asyncio.Task[None]] = set()
        self._failure_logged = False
        """True from the log record of a failed publish to the next confirmed batch: an outage is logged once."""
        self.recorder: Recorder = Recorder(options, name, self._send_batch)
        self.channels: ChannelFactory = partial(CapturedChannel, self.recorder)
        """Factory of data channels for the App's connections; these channels record their publishes and deliveries."""

    async def start(self, timeout: float) -> None:
        """Connect; from then on, reconnect after each loss.

        :param timeout: seconds for the first connection.
        :raises WarrenError: if there is no connection in time, or the stream does not exist and cannot be declared.
        """
        await self._link.start(timeout)

    def start_in_background(self) -> None:
        """Begin to connect, and return at once; events wait for the connection, as after a loss."""
        self._link.start_in_background()

    @property
    def has_connected(self) -> bool:
        """True after the first connection."""
        return self._link.connects > 0

    @property
    def error(self) -> WarrenError | None:
        """The error of the last attempt to connect; None while connected."""
        return self._link.error

    def _connected(self) -> None:
        self._publish_channels.attach()
        self._on_change()

    async def stop(self, timeout: float) -> None:
        """Publish pending batches for at most `timeout` seconds; the rest is lost, which is logged."""
        self.recorder.record_stop()
        if self._writing:
            _, late = await asyncio.wait(self._writing, timeout=timeout)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        self._publisher.close()
        await self._link.close()
        if dropped := self.recorder.statistics.dropped:
            log.warning("event=capture.events_lost stream=%s count=%s", self._options.stream, dropped)

    def abort(self) -> None:
        """Close the socket at once, for a caller that cannot wait for `stop`; pending events are lost."""
        for task in self._writing:
            task.cancel()
        self._link.abort()

    def statistics(self) -> CaptureStatistics:
        """Return the numbers of events that were written or dropped in this run, or that wait for their confirm."""
        return self.recorder.snapshot()

    async def _set_up(self, session: Session, control: ControlChannel) -> None:
        await self._declare_stream(control)
        await self._publish_channels.open(session)

    async def _declare_stream(self, control: ControlChannel) -> None:
        """Check that the stream exists; if it does not, declare it.

        :raises TopologyMismatch: if it does not exist and the writer was created with `declare=False`.
        """
        form = Declaration.of(self._options.queue())
        what = f"cannot capture events to stream {self._options.stream!r}"
        try:
            await control.run(what, form.check_exists)
        except TopologyMismatch as error:
            if error.reply_code != 404 or not self._declare:
                raise
            await control.run(what, form.declare)

    def _send_batch(self, batch: EventBatch) -> None:
        task = asyncio.create_task(self._write(batch), name=f"events {batch.message_id}")
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _write(self, batch: EventBatch) -> None:
        written = False
        try:
            while not written:
                written = await self._publish(batch)
        except WarrenError as error:
            # The batch would fail forever and occupy its place in the buffer.
            if not self._failure_logged:
                log.warning("event=capture.batch_dropped stream=%s error=%s", batch.stream, error)
            self._failure_logged = True
        finally:
            if written:
                self.recorder.written(batch)
            else:
                self.recorder.lost(batch)

    async def _publish(self, batch: EventBatch) -> bool:
        """Make one attempt to publish a batch; return whether the broker confirmed it. After a failure that may pass,
        wait `AGAIN_SECONDS` and return False: the caller has to try again.

        :raises WarrenError: if a further attempt could not succeed either; the batch is then dropped.
        """
        # A new message for each attempt: headers of an earlier attempt do not apply.
        outgoing = Outgoing("", batch.stream, dict(batch.properties), dict(batch.headers), batch.body)
        try:
            await self._publisher.publish(outgoing, CONFIRM_SECONDS)
        except WarrenError as error:
            if not error.retryable and not isinstance(error, Unroutable):
                raise
            if not self._failure_logged:
                log.warning("event=capture.batch_retried stream=%s error=%s", batch.stream, error)
            self._failure_logged = True
            await asyncio.sleep(AGAIN_SECONDS)
            if isinstance(error, Unroutable):
                await self._declare_stream_again()
            return False
        self._failure_logged = False
        return True

    async def _declare_stream_again(self) -> None:
        """Declare the stream once more, because a batch was returned as unroutable: the stream has been deleted."""
        try:
            await self._link.run(self._declare_stream)
        except WarrenError as error:
            log.warning("event=capture.stream_not_declared stream=%s error=%s", self._options.stream, error)
