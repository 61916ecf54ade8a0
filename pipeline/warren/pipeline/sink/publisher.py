"""Publishing until every message is confirmed: a limited number of unconfirmed messages, retries and reconnects.

A lost connection is opened again, and a message that the broker refused (`basic.nack`: a full queue, most often) is
published again, as long as something is confirmed within the timeout. A message that is published again may be in the
queue twice, with the same message id. Messages that were refused, or lost with a connection, follow the ones that were
accepted: their order in a queue may differ.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from warren.core.blocking_connection import CHANNEL, ClosedByBroker
from warren.pipeline.broker_connection import TRANSIENT_REPLIES, describe_failure, retry_while_transient
from warren.pipeline.errors import PipelineError
from warren.pipeline.sink.confirm_window import ConfirmWindow
from warren.pipeline.sink.write_options import WINDOW_BYTES, Target
from warren.wire.delivery_scanner import DeliveryScanner, StreamError

SEND_CHUNK = 64 * 1024
"""Maximum bytes of frames that are passed to the socket at a time."""
POLL_INTERVAL = 0.5
"""Longest wait in seconds for data from the broker; then it is checked whether the timeout for confirms has expired."""
PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds before the first attempt to publish refused messages again or to reconnect, and the longest pause between
later attempts; the pause doubles."""


class Publisher:
    """Publisher of encoded messages over a connection in confirm mode, which it opens again when it is lost.

    Its errors do not name the exchange and broker; the caller adds them by calling it inside `pipeline_errors`.

    :raises PipelineError: if no connection can be made within the timeout
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._confirms = ConfirmWindow()
        self._retrying = False
        """True while refused or unconfirmed messages are published again. Only a confirm then counts as progress, not
        the sending of data."""
        self._last_progress_at = time.monotonic()
        self._pause = PAUSE
        self._retry_at = 0.0
        retry_while_transient(target.address.timeout, self._open)
        self._last_progress_at = time.monotonic()
        self.frame_max = self._connection.frame_max
        """Largest frame in bytes that the broker accepts."""

    @property
    def confirmed(self) -> int:
        """Number of messages confirmed so far."""
        return self._confirms.confirmed

    def publish(self, frames: Sequence[bytes]) -> None:
        """Publish messages; wait while the maximum number of messages is unconfirmed.

        :param frames: for each message one bytes object with all its frames
        :raises PipelineError: if the broker refuses messages for too long, or returns one that no queue accepts
        """
        window, chunk, size = self._target.window, [], 0
        for frame in frames:
            chunk.append(frame)
            size += len(frame)
            if size >= SEND_CHUNK or len(chunk) >= window:
                self._publish(chunk)
                chunk, size = [], 0
        if chunk:
            self._publish(chunk)

    def finish(self) -> None:
        """Wait until every published message is confirmed.

        :raises PipelineError: if the broker refuses messages for too long, or returns one that no queue accepts
        """
        while len(self._confirms):
            self._wait_for_confirms()

    def close(self) -> None:
        self._connection.close()

    def _publish(self, chunk: list[bytes]) -> None:
        confirms = self._confirms
        while len(confirms) and (
            len(confirms) + len(chunk) > self._target.window or confirms.size >= WINDOW_BYTES
        ):
            self._wait_for_confirms()
        confirms.add(chunk)
        self._with_reconnect(lambda: self._send(b"".join(chunk)))

    def _wait_for_confirms(self) -> None:
        """Publish refused messages (`basic.nack`) again when the pause before their retry is over. Then process the
        frames that the broker sends next.
        """
        confirms = self._confirms
        if confirms.nacked and time.monotonic() >= self._retry_at:
            unconfirmed = confirms.take_nacked()
            confirms.add(unconfirmed)
            self._with_reconnect(lambda: self._send(b"".join(unconfirmed)))
        wait = max(self._retry_at - time.monotonic(), 0) if confirms.nacked else POLL_INTERVAL
        self._with_reconnect(lambda: self._receive(min(wait, POLL_INTERVAL)))
        self._check_timeout()

    def _send(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            sent = self._connection.offer(rest[:SEND_CHUNK], POLL_INTERVAL)
            rest = rest[sent:]
            if sent and not self._retrying:
                self._last_progress_at = time.monotonic()
            self._receive(0)
            self._check_timeout()

    def _receive(self, wait: float) -> bool:
        """Receive and process frames; return whether any arrived.

        :param wait: longest wait in seconds
        :raises PipelineError: if a message was returned as unroutable, or the broker sent invalid data
        """
        data = self._connection.receive(wait)
        if not data:
            return False
        confirms = self._confirms
        confirmed, nacked = confirms.confirmed, len(confirms.nacked)
        try:
            other_frames = self._scanner.feed(data)
        except StreamError as error:
            raise PipelineError(f"the broker sent data that is not AMQP 0-9-1: {error}") from None
        now = time.monotonic()
        if len(confirms.nacked) > nacked:
            self._retrying = True
            if not nacked:
                self._retry_at = now + self._pause
                self._pause = min(2 * self._pause, LONGEST_PAUSE)
        if confirms.confirmed > confirmed:
            self._last_progress_at = now
            if not confirms.nacked:
                self._retrying, self._pause = False, PAUSE
        while other_frames:
            end = 8 + int.from_bytes(other_frames[3:7], "big")
            self._connection.check_frame(other_frames[:end])
            other_frames = other_frames[end:]
        if returned := confirms.returned:
            raise PipelineError(
                f"no queue accepted a message with routing key {returned.routing_key!r} "
                f"({returned.reply_code} {returned.reply_text}): bind a queue to exchange {returned.exchange!r}, "
                "or set the option 'mandatory' to false"
            )
        return True

    def _check_timeout(self) -> None:
        """Raise an error if the broker has confirmed nothing within the timeout although messages are unconfirmed."""
        confirms, timeout = self._confirms, self._target.address.timeout
        if not len(confirms) or time.monotonic() - self._last_progress_at < timeout:
            return
        if confirms.blocked_reason is not None:
            why = f"because it blocks publishers ({confirms.blocked_reason})"
        elif confirms.nacked or self._retrying:
            why = "because it refuses messages (is a queue full whose overflow policy is reject-publish?)"
        else:
            why = "because it does not answer"
        raise PipelineError(
            f"the broker confirmed nothing for {timeout:g} s {why}; {confirms.confirmed} messages were confirmed"
        )

    def _with_reconnect(self, operation: Callable[[], object]) -> None:
        """Run an operation on the connection. If that loses the connection, reconnect and publish the unconfirmed
        messages again; the operation is not repeated.
        """
        try:
            operation()
        except (OSError, ClosedByBroker) as error:
            self._reconnect(error)

    def _reconnect(self, error: Exception) -> None:
        """Open a new connection and publish the unconfirmed messages on it, with retries until the timeout.

        :param error: error by which the connection was lost
        :raises PipelineError: if the timeout ends first
        :raises ClosedByBroker: if the broker closed the connection for a reason that does not pass
        """
        if not self._retrying:
            self._retrying, self._last_progress_at = True, time.monotonic()
        pause = PAUSE
        while True:
            error = self._read_close_reason(error)
            if isinstance(error, ClosedByBroker) and error.code not in TRANSIENT_REPLIES:
                raise error
            self._connection.close()
            timeout = self._target.address.timeout
            if time.monotonic() - self._last_progress_at >= timeout:
                raise PipelineError(
                    f"{describe_failure(error)} (waited {timeout:g} s; {self.confirmed} messages were confirmed)"
                )
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            try:
                self._open()
            except (OSError, ClosedByBroker, PipelineError) as unavailable:
                error = unavailable
                continue
            try:
                unconfirmed = self._confirms.take_unconfirmed()
                self._confirms.add(unconfirmed)
                self._send(b"".join(unconfirmed))
                return
            except (OSError, ClosedByBroker) as lost:
                error = lost

    def _read_close_reason(self, error: Exception) -> Exception:
        """Return the reason why the broker closed the connection, if it sent one (`connection.close`), else the given
        error.
        """
        try:
            while isinstance(error, OSError) and self._receive(0):
                pass
        except OSError:
            return error
        except ClosedByBroker as closed:
            return closed
        return error

    def _open(self) -> None:
        connection = self._target.address.open("warren pipeline sink")
        try:
            connection.call("confirm.select", False)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        self._scanner = DeliveryScanner(self._confirms)
        self._scanner.limit = connection.frame_max
        self._scanner.open(CHANNEL, self._confirms)
