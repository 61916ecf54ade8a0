"""State and health of an App, and the listeners for state changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from warren.sdk.logger import log


class State(Enum):
    """State of an App.

    CLOSED -> CONNECTING -> READY <-> BLOCKED; READY or BLOCKED -> CONNECTING after a loss; any -> CLOSING -> CLOSED.

    READY needs both connections, the publish channels, the reply queue, and the broker's `basic.consume-ok` for every
    consumer; not for a subscription that is paused or cancelled, or stopped by its circuit breaker. In BLOCKED the
    broker blocks publishers (`connection.blocked`), so that publishes wait; consumers work as in READY.
    """

    CONNECTING = "connecting"
    """No connection yet, or none after a loss."""
    READY = "ready"
    """Connected, and every consumer accepted."""
    BLOCKED = "blocked"
    """Connected, but publishes wait, because the broker blocks publishers."""
    CLOSING = "closing"
    """Stopping: running handlers finish."""
    CLOSED = "closed"
    """Not started, or stopped."""


@dataclass(frozen=True, slots=True)
class Health:
    """Health of an App, for probes.

    :ivar waiting: the parts that are not ready: `publisher`, `consumer`, `capture` until its first connection,
        and the queues on which the broker has not accepted the consumer.
    :ivar reason: the last error, or the reason for which the broker blocks publishers; None if there is neither.
    """

    state: State
    waiting: tuple[str, ...] = ()
    reason: str | None = None

    @property
    def ready(self) -> bool:
        """True if the App is connected, the broker has accepted every consumer, and it does not block publishers."""
        return self.state is State.READY


class StateListeners:
    """Callbacks for state changes, called in the order in which they were added, once for each change."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[State], object]] = []
        self._last = State.CLOSED

    def add(self, callback: Callable[[State], object]) -> None:
        self._callbacks.append(callback)

    def notify(self, state: State) -> None:
        """Call the listeners with the state, unless the last call was with the same state.

        An exception of one callback is logged; the other callbacks are still called.
        """
        if state is self._last:
            return
        self._last = state
        for callback in self._callbacks:
            try:
                callback(state)
            except Exception:
                log.exception("event=state_callback.failed state=%s", state.value)
