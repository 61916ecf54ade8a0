"""One measurement with the load tool, and what several of them amount to."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.broker import warren


@dataclass(frozen=True)
class Row:
    """A load that is measured, by what it is called in tables and by the options of `warren bench`."""

    name: str
    options: tuple[str, ...] = ()


CONFIRMED = Row("confirmed, acknowledged")
PERSISTENT = Row("persistent, confirmed, acknowledged", ("--persistent",))
UNCONFIRMED = Row("acknowledged, no confirms", ("--no-confirms",))
AUTO_ACK = Row("auto-ack, no confirms", ("--no-confirms", "--auto-ack"))
LARGER = Row("1 KiB, confirmed, acknowledged", ("--size", "1024"))


@dataclass(frozen=True)
class Sample:
    """One run: consumed messages a second, and the broker's processor time for each in microseconds."""

    per_second: float
    microseconds: float
    load_tool_cores: float


@dataclass(frozen=True)
class Median:
    """The middle of several figures, and their lowest and highest."""

    middle: float
    lowest: float
    highest: float

    @staticmethod
    def of(values: Sequence[float]) -> Median:
        return Median(statistics.median(values), min(values), max(values))

    def __format__(self, spec: str) -> str:
        return f"{self.middle:{spec}} ({self.lowest:{spec}}-{self.highest:{spec}})"


class NotMeasured(Exception):
    """The load tool failed, or found that messages were lost: what it said."""


def measure(
    python: str | Path, url: str, pid: int, row: Row, seconds: float, env: Mapping[str, str] | None = None
) -> Sample:
    """Run the load tool of an interpreter once.

    :raises NotMeasured: if it does not end with status 0
    """
    words = warren(
        "bench", "--url", url, "--pid", str(pid), "--seconds", str(seconds), "--json", *row.options
    )
    done = subprocess.run(
        [str(python), *map(str, words[1:])], capture_output=True, text=True, env={**os.environ, **(env or {})}
    )
    if done.returncode:
        raise NotMeasured(f"{row.name} on {url}: {done.stdout}{done.stderr}".strip())
    report = json.loads(done.stdout)
    return Sample(
        report["consumed_per_second"], report["processor_us_per_message"], report["load_tool_cores"]
    )
