"""Run of many cases against one broker, with checks of answers, memory and another connection."""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tests.faults.fuzz.attempt import Attempt, HttpAttempt
from tests.faults.fuzz.cases import make_case
from tests.faults.fuzz.http_cases import VIRTUAL_HOST, make_http_case
from tests.faults.fuzz.witness import Witness
from tests.support.http_client import HttpApi
from tests.support.processes import resident_kib

CONCURRENT_CASES = 24
"""Number of cases in progress at the same time."""
ANSWER_SECONDS = 60.0
"""Seconds for the answer to a case."""
HTTP_SHARE = 0.25
"""Share of the cases that are requests to the HTTP API."""
WARM_UP_CASES = 5_000
"""Cases after which the memory of the broker must not grow any more."""


@dataclass
class Report:
    """Results of a run."""

    cases: int
    seconds: float = 0.0
    answers: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    """Cases with a wrong answer, one line each."""
    confirmed: int = 0
    slowest: float = 0.0
    warm_kib: int = 0
    end_kib: int = 0

    @property
    def growth_kib(self) -> int:
        """Growth of the broker's memory since the warm-up, in KiB."""
        return self.end_kib - self.warm_kib

    def lines(self) -> list[str]:
        """Return the report as lines for people."""
        answers = ", ".join(f"{answer}: {count:,}" for answer, count in self.answers.most_common())
        return [
            f"{self.cases:,} cases of {len(self.kinds)} kinds in {self.seconds:.0f} s ({self.cases / self.seconds:,.0f}/s)",
            f"answers: {answers}",
            f"wrong: {len(self.wrong)}",
            f"another connection meanwhile: {self.confirmed:,} publishes confirmed and delivered, the slowest after "
            f"{self.slowest * 1000:.0f} ms",
            f"memory: {self.warm_kib / 1024:.1f} MiB after the warm-up, {self.end_kib / 1024:.1f} MiB at the end",
            *self.wrong[:20],
        ]


def run_cases(
    url: str, http: str, pid: int, cases: int, seed: int, progress: Callable[[str], None] = lambda line: None
) -> Report:
    """Send cases to a broker and check its answers.

    :param http: base URL of its HTTP API
    :param pid: process id of the broker, to measure its memory
    :param progress: called with a line from time to time
    """
    addresses = [(parts.hostname or "127.0.0.1", parts.port or 0) for parts in map(urlsplit, (url, http))]
    HttpApi(http).put(f"vhosts/{VIRTUAL_HOST}")
    chance = random.Random(seed)
    report = Report(cases)
    started = time.monotonic()
    warm = min(WARM_UP_CASES, cases // 2)
    in_progress: deque[Attempt | HttpAttempt] = deque()
    with Witness(url) as witness:
        for number in range(cases):
            if number == warm:
                report.warm_kib = resident_kib(pid)
            if number and number % 50_000 == 0:
                progress(f"{number:,} cases, {resident_kib(pid) / 1024:.1f} MiB")
            if chance.random() < HTTP_SHARE:
                in_progress.append(HttpAttempt(addresses[1], make_http_case(chance), ANSWER_SECONDS))
            else:
                in_progress.append(Attempt(addresses[0], make_case(chance), ANSWER_SECONDS))
            if len(in_progress) == CONCURRENT_CASES:
                check_answer(in_progress.popleft(), report)
        while in_progress:
            check_answer(in_progress.popleft(), report)
        report.end_kib = resident_kib(pid)
    report.seconds = time.monotonic() - started
    report.confirmed, report.slowest = witness.confirmed, witness.slowest
    if witness.error is not None:
        report.wrong.append(f"the other connection: {witness.error!r}")
    return report


def check_answer(attempt: Attempt | HttpAttempt, report: Report) -> None:
    """Wait for the answer to a case and add it to the report."""
    case = attempt.case
    try:
        answer = attempt.answer()
    except TimeoutError:
        answer = "nothing"
    report.kinds[case.kind] += 1
    report.answers[answer] += 1
    if answer not in case.answers:
        wanted = " or ".join(sorted(case.answers))
        sent = case.data.hex() if isinstance(attempt, Attempt) else repr(case.data)
        report.wrong.append(f"{case.kind}: {answer} instead of {wanted}: {sent}")
