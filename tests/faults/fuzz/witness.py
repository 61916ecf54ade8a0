"""A valid client beside the invalid ones: it publishes and consumes, and must not be affected."""

from __future__ import annotations

import threading
import time

from pamqp import commands

from tests.support.raw_client import RawClient, made

STALL_SECONDS = 60.0
"""Seconds without a reply after which the witness fails."""


class Witness:
    """A connection with confirms and a consumer, in its own thread. It runs inside the `with` block."""

    def __init__(self, url: str) -> None:
        self._peer = RawClient(url, timeout=STALL_SECONDS)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="witness")
        self.confirmed = 0
        self.slowest = 0.0
        """Longest time from a publish to its confirm and delivery, in seconds."""
        self.error: BaseException | None = None

    def _run(self) -> None:
        peer = self._peer
        try:
            peer.connect().open()
            queue = peer.call(
                made(commands.Queue.Declare, queue="", exclusive=True), 1, commands.Queue.DeclareOk
            )
            name = queue.queue or ""
            peer.call(commands.Confirm.Select(), 1, commands.Confirm.SelectOk)
            consume = made(commands.Basic.Consume, queue=name, consumer_tag="witness", no_ack=True)
            peer.call(consume, 1, commands.Basic.ConsumeOk)
            while not self._stop.wait(0.005):
                started = time.monotonic()
                body = str(self.confirmed).encode()
                peer.publish("", name, body, mandatory=True)
                self._read_both(body)
                self.confirmed += 1
                self.slowest = max(self.slowest, time.monotonic() - started)
            peer.close()
        except BaseException as error:
            self.error = error

    def _read_both(self, body: bytes) -> None:
        """Read the delivery and the confirm, in any order."""
        confirmed = delivered = False
        while not (confirmed and delivered):
            _, method = self._peer.read_method()
            if isinstance(method, commands.Basic.Ack):
                confirmed = True
            else:
                assert isinstance(method, commands.Basic.Deliver), method
                self._peer.read()
                _, piece = self._peer.read()
                assert getattr(piece, "value", None) == body
                delivered = True

    def __enter__(self) -> Witness:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(STALL_SECONDS + 5)
        self._peer.abort()
