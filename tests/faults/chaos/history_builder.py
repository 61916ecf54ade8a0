"""Builder of short histories for the tests of the checker."""

from __future__ import annotations

from tests.faults.chaos.checker import FaultKind, find_faults
from tests.faults.chaos.history import EventType, History, QueueRules

RULES = {
    "q": QueueRules(),
    "levels": QueueRules(priorities=4),
    "source": QueueRules(dead_letters_to="dead-letters"),
    "mortal": QueueRules(dead_letters_to="dead-letters-2", ttl=True),
    "dead-letters": QueueRules(ordered=False),
    "dead-letters-2": QueueRules(ordered=False),
    "stream": QueueRules(stream=True),
}


class HistoryBuilder(History):
    """A history with methods that append common events; a millisecond passes with each.

    Messages are named by their number; `p` is the publisher and `q` the queue unless given.
    """

    def __init__(self) -> None:
        super().__init__(RULES)
        self._now = 1.0

    def add(
        self, event_type: EventType, client: str, message: str = "", *queues: str, **more: object
    ) -> None:
        """Append an event, a millisecond after the last one."""
        self._now += 0.001
        self.note(event_type, client, message, *queues, at=self._now, **more)  # type: ignore[arg-type]

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds

    def publish(self, *messages: str, to: tuple[str, ...] = ("q",), by: str = "p", priority: int = 0) -> None:
        """Publish messages without confirms."""
        for message in messages:
            self.add(EventType.PUBLISH, by, f"{by}:{message}", *to, priority=priority)

    def publish_confirmed(
        self, *messages: str, to: tuple[str, ...] = ("q",), by: str = "p", priority: int = 0
    ) -> None:
        """Publish messages and confirm each."""
        for message in messages:
            self.publish(message, to=to, by=by, priority=priority)
            self.add(EventType.CONFIRMED, by, f"{by}:{message}")

    def deliver(self, *messages: str, at: str = "q", by: str = "c", again: bool = False) -> None:
        """Deliver messages from a queue; `again` sets the redelivered flag."""
        for message in messages:
            self.add(EventType.DELIVERED, by, f"p:{message}", at, redelivered=again)

    def settle(self, *messages: str, at: str = "q", by: str = "c", how: EventType = EventType.ACK) -> None:
        """Acknowledge messages, or reject or requeue them."""
        for message in messages:
            self.add(how, by, f"p:{message}", at)

    def consume(self, *messages: str, at: str = "q", by: str = "c", again: bool = False) -> None:
        """Deliver and acknowledge messages, one by one."""
        for message in messages:
            self.deliver(message, at=at, by=by, again=again)
            self.settle(message, at=at, by=by)

    def fence(self, by: str = "c") -> None:
        """Let the client wait until the broker has processed all that it sent."""
        self.add(EventType.FENCE, by)
        self.add(EventType.FENCED, by)

    def kill(self) -> None:
        """Kill the broker."""
        self.add(EventType.KILLED, "")

    def drain(self, *messages: str, at: str = "q", again: bool = True) -> None:
        """Drain the queues; the draining client receives these messages."""
        self.add(EventType.DRAIN_STARTED, "d")
        self.consume(*messages, at=at, by="d", again=again)
        self.add(EventType.DRAINED, "d")

    def kinds(self) -> list[FaultKind]:
        """Return the kinds of the faults that the checker finds."""
        return [fault.kind for fault in find_faults(self)]
