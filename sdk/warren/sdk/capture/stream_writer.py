"""Brings batches of events to their stream: a connection of its own, confirms, the same message again until it is there."""

from __future__ import annotations

import asyncio
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
"""Batches without a confirm at a time."""
CONFIRM_SECONDS: Final = 30.0
AGAIN_SECONDS: Final = 1.0
"""Before a batch is sent again that the broker refused."""


class CaptureStreamWriter:
    """The capture of one run of an App."""

    def __init__(
        self,
        options: Capture,
        hosts: Hosts,
        name: str,
        *,
        declare: bool,
        first_retry: float,
        longest_retry: float,
    ) -> None:
        """:param declare: whether a stream that is not there is made."""
        self._options = options
        self._declare = declare
        self._publisher = Publisher(window=WINDOW, on_return=lambda error: None)
        self._ways = PublishChannels(self._publisher, lambda: None)
        self._link = SupervisedConnection(
            hosts,
            f"{name} capture",
            setup=self._set_up,
            on_up=self._ways.attach,
            on_down=self._ways.detach,
            on_blocked=self._publisher.set_blocked,
            first_retry=first_retry,
            longest_retry=longest_retry,
        )
        self._writing: set[asyncio.Task[None]] = set()
        self._failing = False
        """It has been said that a batch was not taken."""
        self.recorder: Recorder = Recorder(options, name, self._keep)
        self.channels: ChannelFactory = partial(CapturedChannel, self.recorder)
        """What the App's own channels are."""

    async def start(self, timeout: float) -> None:
        """Connect; from here on it stays connected.

        :raises WarrenError: if that fails, or there can be no such stream.
        """
        await self._link.start(timeout)

    async def stop(self, timeout: float) -> None:
        """Write what waits, for so many seconds; what is left then is lost, and logged."""
        self.recorder.end()
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
        """For who stops and cannot wait."""
        for task in self._writing:
            task.cancel()
        self._link.abort()

    def statistics(self) -> CaptureStatistics:
        return self.recorder.snapshot()

    async def _set_up(self, session: Session, control: ControlChannel) -> None:
        await self._bring_stream(control)
        await self._ways.open(session)

    async def _bring_stream(self, control: ControlChannel) -> None:
        form = Declaration.of(self._options.queue())
        what = f"cannot capture events to stream {self._options.stream!r}"
        try:
            await control.run(what, form.check_exists)
        except TopologyMismatch as error:
            if error.reply_code != 404 or not self._declare:
                raise
            await control.run(what, form.declare)

    def _keep(self, batch: EventBatch) -> None:
        task = asyncio.create_task(self._write(batch), name=f"events {batch.message_id}")
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _write(self, batch: EventBatch) -> None:
        written = False
        try:
            while not written:
                written = await self._sent(batch)
        except WarrenError as error:
            # It would fail for ever, and the place that it takes in the buffer would be lost to all that come after.
            if not self._failing:
                log.warning("event=capture.batch_dropped stream=%s error=%s", batch.stream, error)
            self._failing = True
        finally:
            if written:
                self.recorder.written(batch)
            else:
                self.recorder.lost(batch)

    async def _sent(self, batch: EventBatch) -> bool:
        """
        :raises WarrenError: if another attempt would end alike
        """
        # A new one each time: what was said of an attempt before does not count for this one.
        outgoing = Outgoing("", batch.stream, dict(batch.properties), dict(batch.headers), batch.body)
        try:
            await self._publisher.publish(outgoing, CONFIRM_SECONDS)
        except WarrenError as error:
            if not error.retryable and not isinstance(error, Unroutable):
                raise
            if not self._failing:
                log.warning("event=capture.batch_retried stream=%s error=%s", batch.stream, error)
            self._failing = True
            await asyncio.sleep(AGAIN_SECONDS)
            if isinstance(error, Unroutable):
                await self._bring_again()
            return False
        self._failing = False
        return True

    async def _bring_again(self) -> None:
        """Somebody has deleted the stream."""
        try:
            await self._link.run(self._bring_stream)
        except WarrenError as error:
            log.warning("event=capture.stream_not_declared stream=%s error=%s", self._options.stream, error)
