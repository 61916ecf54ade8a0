"""Many cases at one broker: each has to be answered as it deserves, and nothing else may come of them."""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tests.faults.fuzz.attempt import Attempt
from tests.faults.fuzz.cases import make_case
from tests.faults.fuzz.witness import Witness
from tests.support.processes import resident_kib

AT_ONCE = 24
"""Cases under way at the same time."""
TIMEOUT = 60.0
WARM = 5_000
"""Cases after which the broker has all the memory that it should need."""


@dataclass
class Report:
    """What came of a run."""

    cases: int
    seconds: float = 0.0
    answers: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    """Cases that were not answered as they deserve, one line each."""
    confirmed: int = 0
    slowest: float = 0.0
    warm_kib: int = 0
    end_kib: int = 0

    @property
    def growth_kib(self) -> int:
        """How much memory the broker has taken since it was warm."""
        return self.end_kib - self.warm_kib

    def lines(self) -> list[str]:
        answers = ", ".join(f"{answer}: {count:,}" for answer, count in self.answers.most_common())
        return [
            f"{self.cases:,} cases of {len(self.kinds)} kinds in {self.seconds:.0f} s ({self.cases / self.seconds:,.0f}/s)",
            f"answers: {answers}",
            f"wrong: {len(self.wrong)}",
            f"another connection meanwhile: {self.confirmed:,} publishes confirmed and delivered, the slowest after "
            f"{self.slowest * 1000:.0f} ms",
            f"memory: {self.warm_kib / 1024:.1f} MiB once warm, {self.end_kib / 1024:.1f} MiB in the end",
            *self.wrong[:20],
        ]


def run(url: str, pid: int, cases: int, seed: int, told: Callable[[str], None] = lambda line: None) -> Report:
    """
    :param url: the broker to be ill-treated
    :param pid: its process, whose memory is looked at
    :param told: hears of the progress, a line now and then
    """
    parts = urlsplit(url)
    address = (parts.hostname or "127.0.0.1", parts.port or 5672)
    chance = random.Random(seed)
    report = Report(cases)
    started = time.monotonic()
    warm = min(WARM, cases // 2)
    under_way: deque[Attempt] = deque()
    with Witness(url) as witness:
        for number in range(cases):
            if number == warm:
                report.warm_kib = resident_kib(pid)
            if number and number % 50_000 == 0:
                told(f"{number:,} cases, {resident_kib(pid) / 1024:.1f} MiB")
            under_way.append(Attempt(address, make_case(chance), TIMEOUT))
            if len(under_way) == AT_ONCE:
                judge(under_way.popleft(), report)
        while under_way:
            judge(under_way.popleft(), report)
        report.end_kib = resident_kib(pid)
    report.seconds = time.monotonic() - started
    report.confirmed, report.slowest = witness.confirmed, witness.slowest
    if witness.trouble is not None:
        report.wrong.append(f"the other connection: {witness.trouble!r}")
    return report


def judge(attempt: Attempt, report: Report) -> None:
    case = attempt.case
    try:
        answer = attempt.answer()
    except TimeoutError:
        answer = "nothing"
    report.kinds[case.kind] += 1
    report.answers[answer] += 1
    if answer not in case.answers:
        wanted = " or ".join(sorted(case.answers))
        report.wrong.append(f"{case.kind}: {answer} instead of {wanted}: {case.data.hex()}")
