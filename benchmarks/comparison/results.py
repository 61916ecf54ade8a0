"""Results of a comparison, stored in a JSON file."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass
class Sample:
    """One run of one load on one broker."""

    per_second: float
    microseconds: float
    p50_ms: float
    p99_ms: float
    load_tool_cores: float
    resident_mb: float
    """The broker's memory after the run."""


@dataclass
class Machine:
    """Machine of the measurement, and its limits."""

    processor: str
    cores: int
    memory_gb: float
    kernel: str
    loopback_bytes_per_second: float
    """One connection with one core at each end, in writes of 256 KiB."""
    syncs_per_second: float
    """fdatasync after each write of 4 KiB to a file, in the folder of the brokers' data."""


@dataclass
class Results:
    """One comparison."""

    date: str
    commit: str
    machine: Machine
    versions: dict[str, str]
    runs: int
    seconds: float
    warmup: float
    loads: dict[str, dict[str, list[Sample]]] = field(default_factory=dict)
    """Samples by row and broker, one for each run."""
    quantities: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """Values by quantity and broker."""
    failures: list[str] = field(default_factory=list)
    note: str = ""
    """Note about the circumstances."""
    backlog: int = 0
    """Messages of the backlog, if one was measured."""

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(_rounded(asdict(self)), indent=1) + "\n")

    @staticmethod
    def load(path: Path) -> Results:
        data = json.loads(path.read_text())
        machine = Machine(**data.pop("machine"))
        loads = {
            row: {broker: [Sample(**sample) for sample in samples] for broker, samples in brokers.items()}
            for row, brokers in data.pop("loads").items()
        }
        return Results(machine=machine, loads=loads, **data)


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class Median:
    """Median of several figures, with the lowest and the highest."""

    middle: float
    lowest: float
    highest: float

    @staticmethod
    def of(values: Sequence[float]) -> Median:
        return Median(statistics.median(values), min(values), max(values))

    def __format__(self, spec: str) -> str:
        if self.lowest == self.highest:
            return f"{self.middle:{spec}}"
        return f"{self.middle:{spec}} ({self.lowest:{spec}}-{self.highest:{spec}})"
