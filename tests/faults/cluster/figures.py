"""Durations that a run measured, and their percentiles."""

from __future__ import annotations


class Durations:
    """Durations in seconds."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def add(self, seconds: float) -> None:
        self.values.append(seconds)

    def percentile(self, percent: float) -> float:
        """Return the duration that so many percent of all do not exceed; 0 if there is none."""
        ordered = sorted(self.values)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else 0.0

    def row(self) -> str:
        """Return number, p50, p99 and maximum as cells of a Markdown table."""
        cells = [f"{self.percentile(percent):.3f}" for percent in (50, 99, 100)]
        return f"{len(self.values):,} | " + " | ".join(cells)
