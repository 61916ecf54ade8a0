"""Where an App is in its life, as a value, as a report, and as news for those who asked for it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

log: logging.Logger = logging.getLogger("warren.sdk")


class State(Enum):
    """CLOSED -> CONNECTING -> READY <-> BLOCKED; READY or BLOCKED -> CONNECTING after a loss; any -> CLOSING -> CLOSED.

    BLOCKED is READY for consumers, while the broker does not read what is published (`connection.blocked`). READY needs
    both connections, the channels to publish on, the reply queue, and the broker's confirmation of every consumer.
    """

    CONNECTING = "connecting"
    READY = "ready"
    BLOCKED = "blocked"
    CLOSING = "closing"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Health:
    """What a probe wants to know.

    :ivar waiting: what is not there yet: `publisher`, `consumer`, and the queues whose consumer is not confirmed.
    :ivar reason: why not, as far as it is known: the last error, or why the broker blocks.
    """

    state: State
    waiting: tuple[str, ...] = ()
    reason: str | None = None

    @property
    def ready(self) -> bool:
        """Every consumer is confirmed, and the broker takes what is published."""
        return self.state is State.READY


class StateListeners:
    """Those who want to hear of each change of state, once a change, in their order."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[State], object]] = []
        self._last = State.CLOSED

    def add(self, callback: Callable[[State], object]) -> None:
        self._callbacks.append(callback)

    def notify(self, state: State) -> None:
        """Call back if it is not what was told last; what a callback raises is logged and harms nobody."""
        if state is self._last:
            return
        self._last = state
        for callback in self._callbacks:
            try:
                callback(state)
            except Exception:
                log.exception("a callback of on_state failed: state=%s", state.value)
