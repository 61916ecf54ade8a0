"""Differential run of a script: the reference broker must show everything that the tested broker shows.

RabbitMQ's queues are separate processes, so the order of some effects is random. A difference counts if RabbitMQ never
shows what the other broker showed, in several runs from the start.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tests.conformance.broker_session import BrokerSession
from tests.conformance.observation import Observation
from tests.conformance.steps import Script, Step

REFERENCE_TIMEOUT = 2.0
"""Seconds that RabbitMQ may take to show a step's effects."""
REPLAY_TIMEOUTS = (4.0, 10.0, 30.0)
"""The same in each replay of a script: a busy machine is no difference."""


class Difference(AssertionError):
    """Script up to the step with different effects, and both effects."""


class DifferentialRun:
    """One script on two brokers, step by step."""

    def __init__(
        self,
        reference: str,
        subject: str,
        queues: Sequence[str],
        exchanges: Sequence[str],
        advance_time: Callable[[float], None] = time.sleep,
    ) -> None:
        """
        :param reference: URL of a RabbitMQ
        :param subject: URL of the broker that must behave the same
        :param queues: names that the script uses
        :param advance_time: advances the subject's clock by seconds
        """
        self._reference_url, self._queues, self._exchanges = reference, queues, exchanges
        self.reference = self._new_reference_session()
        self.subject = BrokerSession(subject, queues, exchanges, advance_time)
        self.history: list[tuple[Step, Observation]] = []
        self.replays = 0

    def play(self, step: Step) -> Observation:
        """Run a step on both brokers.

        :raises Difference: if the brokers differ
        """
        observed = self.subject.play(step)
        self.history.append((step, observed))
        expected = self.reference.play(step, observed, REFERENCE_TIMEOUT)
        if expected != observed and not self._reference_may_agree():
            raise Difference(self._report(expected))
        return observed

    def play_all(self, script: Script) -> None:
        for step in script:
            self.play(step)

    def _new_reference_session(self) -> BrokerSession:
        return BrokerSession(self._reference_url, self._queues, self._exchanges)

    def _reference_may_agree(self) -> bool:
        """Return whether RabbitMQ sometimes behaves like the subject; if so, continue with that session."""
        for timeout in REPLAY_TIMEOUTS:
            self.replays += 1
            other = self._new_reference_session()
            if all(other.play(step, observed, timeout) == observed for step, observed in self.history):
                self.reference.end()
                self.reference = other
                return True
            other.end()
        return False

    def _report(self, expected: Observation) -> str:
        lines = [""]
        before = Observation()
        for step, observed in self.history[:-1]:
            lines += [f"  {step}", *(f"      {connection}" for connection in observed.lines(before))]
            before = observed
        step, observed = self.history[-1]
        there, here = expected.lines(before), observed.lines(before)
        lines += [f"  {step}"]
        lines += [f"    both     {connection}" for connection in there if connection in here]
        lines += [
            f"    RabbitMQ {connection}"
            for connection in there
            if connection not in here or sorted(there) == sorted(here)
        ]
        lines += [f"    Warren   {connection}" for connection in here if connection not in there]
        return "\n".join(lines)

    def end(self) -> None:
        self.reference.end()
        self.subject.end()
