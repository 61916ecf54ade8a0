"""Histories for tests of the checker, told in short words."""

from __future__ import annotations

from tests.faults.chaos.checker import Kind, check
from tests.faults.chaos.history import History, Rules, What

RULES = {
    "q": Rules(),
    "levels": Rules(priorities=4),
    "source": Rules(dead_letters_to="grave"),
    "mortal": Rules(dead_letters_to="grave-2", ttl=True),
    "grave": Rules(ordered=False),
    "grave-2": Rules(ordered=False),
    "stream": Rules(stream=True),
}


class Story(History):
    """A history that is told in short words; a second passes with each."""

    def __init__(self) -> None:
        super().__init__(RULES)
        self._now = 1.0

    def say(self, what: What, client: str, message: str = "", *queues: str, **more: object) -> None:
        self._now += 0.001
        self.note(what, client, message, *queues, at=self._now, **more)  # type: ignore[arg-type]

    def wait(self, seconds: float) -> None:
        self._now += seconds

    def sent(self, *messages: str, to: tuple[str, ...] = ("q",), by: str = "p", priority: int = 0) -> None:
        for message in messages:
            self.say(What.PUBLISH, by, f"{by}:{message}", *to, priority=priority)

    def confirmed(
        self, *messages: str, to: tuple[str, ...] = ("q",), by: str = "p", priority: int = 0
    ) -> None:
        for message in messages:
            self.sent(message, to=to, by=by, priority=priority)
            self.say(What.CONFIRMED, by, f"{by}:{message}")

    def got(self, *messages: str, at: str = "q", by: str = "c", again: bool = False) -> None:
        for message in messages:
            self.say(What.DELIVERED, by, f"p:{message}", at, redelivered=again)

    def settled(self, *messages: str, at: str = "q", by: str = "c", how: What = What.ACK) -> None:
        for message in messages:
            self.say(how, by, f"p:{message}", at)

    def took(self, *messages: str, at: str = "q", by: str = "c", again: bool = False) -> None:
        for message in messages:
            self.got(message, at=at, by=by, again=again)
            self.settled(message, at=at, by=by)

    def fenced(self, by: str = "c") -> None:
        self.say(What.FENCE, by)
        self.say(What.FENCED, by)

    def killed(self) -> None:
        self.say(What.KILLED, "")

    def drained(self, *messages: str, at: str = "q", again: bool = True) -> None:
        self.say(What.ALONE, "d")
        self.took(*messages, at=at, by="d", again=again)
        self.say(What.EMPTIED, "d")

    def kinds(self) -> list[Kind]:
        return [fault.kind for fault in check(self)]
