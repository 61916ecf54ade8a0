"""Publishes frames until each of their messages is confirmed: a window of them at a time, and again what is in doubt.

A connection that is lost is made again, and a message that the broker refused (`basic.nack`: a full queue, most often) is
offered again, as long as something is confirmed within the timeout. What is published again may be there twice, with the
same message id. What was refused, or lost with a connection, comes behind what was taken: a queue may have it in another
order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from warren.core.blocking_connection import CHANNEL, ClosedByBroker
from warren.pipeline.broker_connection import PASSING, explained
from warren.pipeline.errors import PipelineError
from warren.pipeline.sink.confirm_window import Confirms
from warren.pipeline.sink.write_options import WINDOW_BYTES, Target
from warren.wire.delivery_scanner import DeliveryScanner, StreamError

PIECE = 64 * 1024
"""Bytes that are offered to the socket at a time."""
WAIT = 0.5
"""Seconds to wait for the broker before the clock is looked at."""
PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds before another attempt, the first one and the last ones."""


class Publisher:
    """A connection in confirm mode, made again when it is lost. Whatever it raises is a reason: see `telling`.

    :raises PipelineError: if there is no connection
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._confirms = Confirms()
        self._insisting = False
        """Whether something is being done again: then only a confirm is progress."""
        self._moved = time.monotonic()
        self._pause = PAUSE
        self._retry_at = 0.0
        self._open()
        self.frame_max = self._link.frame_max
        """Bytes of the largest frame that the broker takes."""

    @property
    def confirmed(self) -> int:
        """Messages so far."""
        return self._confirms.confirmed

    def publish(self, frames: Sequence[bytes]) -> None:
        """Publish messages, and wait as long as there are too many that are not confirmed.

        :raises PipelineError: if the broker refuses them, or one comes back because no queue takes it
        """
        window, piece, size = self._target.window, [], 0
        for frame in frames:
            piece.append(frame)
            size += len(frame)
            if size >= PIECE or len(piece) >= window:
                self._publish(piece)
                piece, size = [], 0
        if piece:
            self._publish(piece)

    def finish(self) -> None:
        """Wait until everything is confirmed.

        :raises PipelineError: as in `publish`
        """
        while len(self._confirms):
            self._await()

    def close(self) -> None:
        self._link.close()

    def _publish(self, piece: list[bytes]) -> None:
        confirms = self._confirms
        while len(confirms) and (
            len(confirms) + len(piece) > self._target.window or confirms.size >= WINDOW_BYTES
        ):
            self._await()
        confirms.add(piece)
        self._guarded(lambda: self._send(b"".join(piece)))

    def _await(self) -> None:
        """Something comes, or it is time to look."""
        confirms = self._confirms
        if confirms.refused and time.monotonic() >= self._retry_at:
            again = confirms.take_refused()
            confirms.add(again)
            self._guarded(lambda: self._send(b"".join(again)))
        wait = max(self._retry_at - time.monotonic(), 0) if confirms.refused else WAIT
        self._guarded(lambda: self._hear(min(wait, WAIT)))
        self._check_time()

    def _send(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            sent = self._link.offer(rest[:PIECE], WAIT)
            rest = rest[sent:]
            if sent and not self._insisting:
                self._moved = time.monotonic()
            self._hear(0)
            self._check_time()

    def _hear(self, wait: float) -> bool:
        """Take in what has come, and judge it; whether something has."""
        data = self._link.receive(wait)
        if not data:
            return False
        confirms = self._confirms
        confirmed, refused = confirms.confirmed, len(confirms.refused)
        try:
            others = self._scanner.feed(data)
        except StreamError as error:
            raise PipelineError(f"the broker sent what is no AMQP 0-9-1: {error}") from None
        now = time.monotonic()
        if len(confirms.refused) > refused:
            self._insisting = True
            if not refused:
                self._retry_at = now + self._pause
                self._pause = min(2 * self._pause, LONGEST_PAUSE)
        if confirms.confirmed > confirmed:
            self._moved = now
            if not confirms.refused:
                self._insisting, self._pause = False, PAUSE
        while others:
            end = 8 + int.from_bytes(others[3:7], "big")
            self._link.judge(others[:end])
            others = others[end:]
        if returned := confirms.returned:
            raise PipelineError(
                f"no queue took a message with routing key {returned.routing_key!r} "
                f"({returned.reply_code} {returned.reply_text}): bind a queue to exchange {returned.exchange!r}, "
                "or set the option 'mandatory' to false"
            )
        return True

    def _check_time(self) -> None:
        confirms, timeout = self._confirms, self._target.address.timeout
        if not len(confirms) or time.monotonic() - self._moved < timeout:
            return
        if confirms.reason is not None:
            why = f"it blocks publishers ({confirms.reason})"
        elif confirms.refused or self._insisting:
            why = "it refuses messages (a queue that is full, and rejects what is published?)"
        else:
            why = "it does not answer"
        raise PipelineError(
            f"the broker confirmed nothing for {timeout:g} s, {why}; {confirms.confirmed} messages were confirmed"
        )

    def _guarded(self, step: Callable[[], object]) -> None:
        """Do something with the connection; if that is lost, make another one, and publish again what is in doubt."""
        try:
            step()
        except (OSError, ClosedByBroker) as error:
            self._reconnect(error)

    def _reconnect(self, error: Exception) -> None:
        if not self._insisting:
            self._insisting, self._moved = True, time.monotonic()
        pause = PAUSE
        while True:
            error = self._last_words(error)
            if isinstance(error, ClosedByBroker) and error.code not in PASSING:
                raise error
            self._link.close()
            timeout = self._target.address.timeout
            if time.monotonic() - self._moved >= timeout:
                raise PipelineError(
                    f"{explained(error)} (waited {timeout:g} s; {self.confirmed} messages were confirmed)"
                )
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            try:
                self._open()
            except (OSError, ClosedByBroker, PipelineError) as unavailable:
                error = unavailable
                continue
            try:
                again = self._confirms.restart()
                self._confirms.add(again)
                self._send(b"".join(again))
                return
            except (OSError, ClosedByBroker) as lost:
                error = lost

    def _last_words(self, error: Exception) -> Exception:
        """Why the connection was lost, if the broker said so before it closed it; confirms that came before count."""
        try:
            while isinstance(error, OSError) and self._hear(0):
                pass
        except OSError:
            return error
        except ClosedByBroker as said:
            return said
        return error

    def _open(self) -> None:
        self._link = self._target.address.open("warren pipeline sink")
        self._scanner = DeliveryScanner(self._confirms)
        self._scanner.limit = self._link.frame_max
        self._scanner.open(CHANNEL, self._confirms)
        self._link.call("confirm.select", False)
