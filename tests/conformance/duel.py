"""A script on two brokers at once: what the one that is judged shows, the one that judges has to show as well.

RabbitMQ's queues are processes of their own, so the order of some consequences is chance. A difference counts if RabbitMQ,
asked again from the start, never shows what the other one showed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tests.conformance.observation import Observation
from tests.conformance.side import Side
from tests.conformance.steps import Script, Step

PATIENCE = 2.0
"""Seconds that RabbitMQ may take to show a step's consequences."""
REPLAYS = 3


class Difference(AssertionError):
    """The script up to the step that was answered in two ways, and both answers."""


class Duel:
    """One script, as it grows."""

    def __init__(
        self,
        judge: str,
        judged: str,
        queues: Sequence[str],
        exchanges: Sequence[str],
        let_pass: Callable[[float], None] = time.sleep,
    ) -> None:
        """
        :param judge: the URL of a RabbitMQ
        :param judged: that of the broker which has to do the same
        :param queues: the names that the script uses
        :param let_pass: makes seconds pass at the judged one
        """
        self._judge, self._queues, self._exchanges = judge, queues, exchanges
        self.judge = self._again()
        self.judged = Side(judged, queues, exchanges, let_pass)
        self.history: list[tuple[Step, Observation]] = []
        self.replays = 0

    def play(self, step: Step) -> Observation:
        """
        :raises Difference: if the brokers differ
        """
        shown = self.judged.take(step)
        self.history.append((step, shown))
        expected = self.judge.take(step, shown, PATIENCE)
        if expected != shown and not self._chance():
            raise Difference(self._report(expected))
        return shown

    def play_all(self, script: Script) -> None:
        for step in script:
            self.play(step)

    def _again(self) -> Side:
        return Side(self._judge, self._queues, self._exchanges)

    def _chance(self) -> bool:
        """Whether RabbitMQ does it like that sometimes; it then goes on from there."""
        for _ in range(REPLAYS):
            self.replays += 1
            other = self._again()
            if all(other.take(step, shown, PATIENCE) == shown for step, shown in self.history):
                self.judge.end()
                self.judge = other
                return True
            other.end()
        return False

    def _report(self, expected: Observation) -> str:
        lines = [""]
        before = Observation()
        for step, shown in self.history[:-1]:
            lines += [f"  {step}", *(f"      {line}" for line in shown.lines(before))]
            before = shown
        step, shown = self.history[-1]
        there, here = expected.lines(before), shown.lines(before)
        lines += [f"  {step}"]
        lines += [f"    both     {line}" for line in there if line in here]
        lines += [
            f"    RabbitMQ {line}" for line in there if line not in here or sorted(there) == sorted(here)
        ]
        lines += [f"    Warren   {line}" for line in here if line not in there]
        return "\n".join(lines)

    def end(self) -> None:
        self.judge.end()
        self.judged.end()
