"""Prometheus' text format: families of samples, labels, and their encoding in parts.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

CONTENT_TYPE: Final = "text/plain; version=0.0.4"
LINES: Final = 200
"""Lines that are encoded in one step: they take less than a millisecond."""

Number: TypeAlias = int | float
Sample: TypeAlias = tuple[str, Number | None]
"""Labels as `label_text` writes them, and the value; None leaves the sample out."""


class Family(NamedTuple):
    """Metric family: the samples of one name.

    :ivar kind: `counter`, `gauge` or `untyped`.
    """

    name: str
    kind: str
    help: str
    samples: Iterable[Sample]


class HistogramFamily(NamedTuple):
    """Metric family of one histogram.

    :ivar labels: labels of all its samples, as `label_text` writes them.
    :ivar bounds: upper bounds of the buckets, ascending.
    :ivar counts: numbers of values in each bucket and, last, of those above all bounds.
    """

    name: str
    help: str
    bounds: Sequence[float]
    counts: Sequence[int]
    sum: float
    labels: str = ""


AnyFamily: TypeAlias = Family | HistogramFamily


def label_text(**labels: str) -> str:
    """Return labels as they stand between the braces of a sample, with the values escaped."""
    return ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items())


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def encode_in_steps(families: Iterable[AnyFamily]) -> Iterator[bytes]:
    """Encode families in parts of at most LINES lines. Bytes of names that are not UTF-8 become `?`."""
    for family in families:
        if isinstance(family, HistogramFamily):
            yield _histogram_text(family).encode()
            continue
        lines = [f"# TYPE {family.name} {family.kind}\n# HELP {family.name} {family.help}\n"]
        for labels, value in family.samples:
            if value is None:
                continue
            lines.append(f"{family.name}{{{labels}}} {value}\n" if labels else f"{family.name} {value}\n")
            if len(lines) >= LINES:
                yield "".join(lines).encode(errors="replace")
                lines = []
        yield "".join(lines).encode(errors="replace")


def _histogram_text(family: HistogramFamily) -> str:
    """Return the lines of a histogram. Each bucket counts the values of the smaller ones, too."""
    lines = [f"# TYPE {family.name} histogram\n# HELP {family.name} {family.help}\n"]
    prefix = f"{family.labels}," if family.labels else ""
    braces = f"{{{family.labels}}}" if family.labels else ""
    total = 0
    for bound, count in zip((*family.bounds, "+Inf"), family.counts, strict=True):
        total += count
        lines.append(f'{family.name}_bucket{{{prefix}le="{bound}"}} {total}\n')
    lines.append(f"{family.name}_sum{braces} {family.sum}\n{family.name}_count{braces} {total}\n")
    return "".join(lines)
