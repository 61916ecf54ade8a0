"""Findings of `warren doctor`, and the registry of its checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, IntEnum
from typing import Any, Final

from warren.cli.doctor.snapshot import Samples
from warren.core.documentation_links import documentation_reference

PAGE: Final = "doctor"
SHOWN: Final = 3
"""Most objects that the text of a finding about several names."""


class Severity(IntEnum):
    """Severity of a finding. The first letter of a code is that of its severity."""

    INFO = 1
    WARNING = 2
    ERROR = 3

    @property
    def label(self) -> str:
        return self.name.lower()


class Source(Enum):
    """Part of a broker's state that a check reads. A check runs only if the state contains its sources."""

    COUNTS = "numbers of messages and consumers"
    QUEUES = "arguments of queues"
    EXCHANGES = "exchanges and bindings"
    POLICIES = "policies"
    CLIENTS = "connections, channels and consumers"
    NODES = "nodes and alarms"
    GROWTH = "a second sample"


@dataclass(frozen=True, slots=True)
class Finding:
    """A defect, or something to know, of one object of a broker.

    :ivar code: code of the check, such as `W101`; its first letter is that of the severity.
    :ivar name: name of the check, such as `no-consumers`.
    :ivar subject: kind and name of the object, such as `queue billing`.
    :ivar evidence: the values that were read.
    :ivar since: time since when it has been so, as far as the broker knows it.
    :ivar advice: what to do.
    """

    code: str
    name: str
    severity: Severity
    subject: str
    evidence: str
    advice: str
    since: datetime | None = None

    @property
    def link(self) -> str:
        """Section of the documentation about the check: its address, or words that name it."""
        return documentation_reference(PAGE, f"{self.code.lower()}-{self.name}")

    @property
    def short_subject(self) -> str:
        """The object for a text: of several, the first three and the number of the others."""
        names = self.subject.split(", ")
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        return ", ".join(names[:SHOWN]) + more

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as values for JSON output."""
        return {
            "code": self.code,
            "name": self.name,
            "severity": self.severity.label,
            "object": self.subject,
            "evidence": self.evidence,
            "since": None if self.since is None else self.since.isoformat(),
            "advice": self.advice,
            "link": self.link,
        }


Observation = tuple[str, str] | tuple[str, str, datetime | None]
"""(object, evidence[, since when]) of one defect that a check found."""


@dataclass(frozen=True, slots=True)
class Check:
    """A check: a code, the advice that it gives, and a function that finds defects in samples of a broker's state."""

    code: str
    name: str
    advice: str
    sources: tuple[Source, ...]
    find: Callable[[Samples], Iterable[Observation]]

    @property
    def severity(self) -> Severity:
        return SEVERITIES[self.code[0]]

    def run(self, samples: Samples) -> Iterator[Finding]:
        """Yield the findings of this check."""
        for subject, evidence, *since in self.find(samples):
            yield self.finding(subject, evidence, since=since[0] if since else None)

    def finding(
        self, subject: str, evidence: str, advice: str | None = None, since: datetime | None = None
    ) -> Finding:
        """Return a finding of this check.

        :param advice: what to do in this case; None for the check's general advice.
        """
        return Finding(self.code, self.name, self.severity, subject, evidence, advice or self.advice, since)


SEVERITIES: Final = {"I": Severity.INFO, "W": Severity.WARNING, "E": Severity.ERROR}
CHECKS: Final[list[Check]] = []
"""All checks of a broker's state, in the order of their modules."""


def check(
    code: str, name: str, *sources: Source, advice: str
) -> Callable[[Callable[[Samples], Iterable[Observation]]], Callable[[Samples], Iterable[Observation]]]:
    """Register the decorated function as a check.

    :param code: letter of the severity (I, W, E) and number.
    :param sources: parts of the broker's state that the function reads.
    :param advice: what to do about a finding.
    """

    def register(
        find: Callable[[Samples], Iterable[Observation]],
    ) -> Callable[[Samples], Iterable[Observation]]:
        CHECKS.append(Check(code, name, advice, sources, find))
        return find

    return register
