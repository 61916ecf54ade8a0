"""A pattern's fault matrix: what happens in each fault, stated where the test is that shows it.

    MATRIX = Matrix("once", page="docs/patterns/once.md")

    @MATRIX.shows(Fault.LOST_ACK, "the message comes again and gets the kept result; the handler does not run")
    async def test_the_acknowledgement_is_lost(...) -> None: ...

    MATRIX.spared(Fault.CLOCK_SKEW, "no part of it reads a clock")

Scenarios that many patterns share are in `scenarios.py`. A module `tests/patterns/faults/test_*.py` holds one matrix as
`MATRIX`. `python -m tests.patterns.faults` writes the tables into the pages, between `<!-- faults: NAME -->` and
`<!-- end of faults -->`; a test fails while a page says something else.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar

ROOT: Final = Path(__file__).parents[3]

Test = TypeVar("Test", bound=Callable[..., Any])


class Fault(StrEnum):
    """Faults, as the pages name them. Each pattern states its behaviour in each of them."""

    CRASH_BEFORE_EFFECT = "The process dies before the handler's effect"
    CRASH_AFTER_EFFECT = "The process dies after the effect, before the acknowledgement"
    LOST_ACK = "The acknowledgement is lost"
    LOST_CONFIRM = "The confirm of a publish is lost"
    DUPLICATE = "A message arrives twice"
    REORDERING = "Messages arrive in another order"
    BROKER_RESTART = "The broker is killed and restarted"
    STORE_DOWN = "The store is down"
    CLOCK_SKEW = "The clocks of two machines differ"


class Matrix:
    """Behaviour of one pattern in each fault.

    :param name: of the table in the page: `<!-- faults: NAME -->`
    :param page: where it stands, from the project's root
    """

    def __init__(self, name: str, *, page: str) -> None:
        self.name = name
        self.page = ROOT / page
        self.answers: dict[Fault, list[str]] = {}

    def shows(self, fault: Fault, what_happens: str) -> Callable[[Test], Test]:
        """Record `what_happens` as shown by the decorated test. Several tests of one fault become several sentences."""

        def record(test: Test) -> Test:
            assert test.__name__.startswith("test_"), f"{test.__name__} is no test"
            self.state(fault, what_happens)
            return test

        return record

    def state(self, fault: Fault, what_happens: str) -> None:
        """Record `what_happens` as shown by a scenario of `scenarios.py`, which `test_scenarios.py` runs."""
        self.answers.setdefault(fault, []).append(what_happens)

    def spared(self, fault: Fault, why: str) -> None:
        """Record why this fault cannot affect the pattern."""
        assert fault not in self.answers, f"{self.name}: a test shows {fault.name} already"
        self.answers[fault] = [why]

    def missing(self) -> list[str]:
        return [fault.name for fault in Fault if fault not in self.answers]

    def table(self) -> str:
        rows = [f"| {fault} | {'; '.join(self.answers[fault])} |" for fault in Fault if fault in self.answers]
        return "\n".join(["| Failure | Behaviour |", "|---|---|", *rows])

    def page_with_table(self) -> str:
        """Return the page's text with the current table.

        :raises AssertionError: the page has no place for the table
        """
        start, end = f"<!-- faults: {self.name} -->", "<!-- end of faults -->"
        text = self.page.read_text()
        place = re.compile(f"{re.escape(start)}\n.*?{re.escape(end)}", re.DOTALL)
        assert len(place.findall(text)) == 1, f"{self.page.name}: not one place {start} ... {end}"
        return place.sub(lambda _: f"{start}\n\n{self.table()}\n\n{end}", text)


def matrices() -> list[Matrix]:
    """Those of all patterns, by the modules that hold them."""
    modules = sorted(path.stem for path in Path(__file__).parent.glob("test_*.py"))
    found = (importlib.import_module(f"tests.patterns.faults.{module}") for module in modules)
    return [module.MATRIX for module in found if hasattr(module, "MATRIX")]
