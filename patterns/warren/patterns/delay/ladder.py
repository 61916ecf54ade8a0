"""Delay ladder: a few fixed delays, each with its own waiting queue and its own target queue."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar, Final

from warren.patterns.delay.wait_queues import wait_queue
from warren.sdk import App, ConfigError, Queue
from warren.sdk.extend import Duration, IncludedComponent, duration, milliseconds

STEPS: Final = ("5s", "10s", "30s", "1m", "5m", "10m", "30m", "1h")


class DelayLadder(IncludedComponent):
    """Set of fixed delays (steps), each with its own target queue.

    Use: `app.include(ladder)`, `await ladder.publish(message, "30s")`, `@app.handle(Remind,
    queue=ladder.queue("30s"))`.

    A message of a step waits in the queue `<name>.<step>.wait.<ms>` and arrives in `<name>.<step>`, so each step has
    handlers of its own, and no step holds up another. Delays take one hop and are exact to the millisecond. Each step
    has three quorum queues, one of them for its dead letters. `<step>` is spelled as given, so all processes must spell
    it alike.

    :param steps: the delays, rounded up to whole milliseconds. Default 5 s, 10 s, 30 s, 1 min, 5 min, 10 min, 30 min
        and 1 h.
    :raises ConfigError: there is no step, two are equal, or one is no duration.
    """

    requires_durable_broker: ClassVar[bool] = True

    def __init__(self, name: str, *steps: Duration) -> None:
        self.name: str = name
        given = steps or STEPS
        self._labels: dict[timedelta, str] = {_rounded(step): _label(step) for step in given}
        if len(self._labels) != len(given) or min(self._labels) <= timedelta(0):
            raise ConfigError(f"the steps of a ladder must be different and longer than 0, not {given}")
        super().__init__()

    @property
    def steps(self) -> tuple[timedelta, ...]:
        return tuple(self._labels)

    def queue(self, step: Duration) -> Queue:
        """Return the queue in which the messages of a step arrive, to be used in `app.handle`.

        :raises ConfigError: there is no such step.
        """
        label = self._labels.get(_rounded(step))
        if label is None:
            raise ConfigError(
                f"the ladder {self.name} has no step {step}; its steps are {', '.join(self._labels.values())}"
            )
        return Queue(f"{self.name}.{label}")

    async def publish(self, message: object, step: Duration, *, message_id: str | None = None) -> None:
        """Publish `message` so that it arrives in `queue(step)` after the delay `step`, at least once.

        :raises ConfigError: there is no such step, or the ladder belongs to no App.
        :raises PublishError: the broker did not confirm the message: it was refused or unroutable, or no confirm came.
        """
        waiting = wait_queue(self.queue(step).name, _rounded(step))
        await self.included_in().publish(message, exchange="", key=waiting.name, message_id=message_id)

    def register(self, app: App) -> None:
        super().register(app)
        for step in self._labels:
            app.declare(self.queue(step), wait_queue(self.queue(step).name, step))

    async def on_start(self) -> None:
        """Do nothing when the App starts: the delayed messages wait in the broker's queues, which the App has
        declared."""

    async def on_stop(self) -> None:
        """Do nothing: messages continue to wait in the broker."""


def _rounded(step: Duration) -> timedelta:
    """Return the delay rounded up to whole milliseconds, the unit of a queue's TTL. Steps are compared after rounding,
    because equal ones would share a waiting queue."""
    return timedelta(milliseconds=milliseconds(duration(step)) or 0)


def _label(step: Any) -> str:
    return step.replace(" ", "") if isinstance(step, str) else f"{milliseconds(duration(step))}ms"


__all__ = ["STEPS", "DelayLadder"]
