"""Run of the load tool against one broker."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from benchmarks.comparison.results import Sample
from benchmarks.comparison.workloads import Workload
from tests.support.broker_process import warren
from tests.support.processes import resident_kib


class MeasurementError(Exception):
    """The load tool failed or found lost messages; the message is its output."""


def measure(
    python: str | Path,
    url: str,
    pid: int,
    row: Workload,
    seconds: float,
    warmup: float = 1.0,
    env: Mapping[str, str] | None = None,
) -> Sample:
    """Run an interpreter's load tool once.

    :raises MeasurementError: if its exit status is not 0
    """
    words = warren("bench", "--url", url, "--pid", str(pid), "--seconds", str(seconds))
    words += ["--warmup", str(warmup), "--json", *row.options]
    # Replace this process's interpreter, the first word of the command.
    command = [str(python), *map(str, words[1:])]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(env or {})})
    if done.returncode:
        raise MeasurementError(f"{row.name} on {url}: {done.stdout}{done.stderr}".strip())
    report = json.loads(done.stdout)
    latency = report["latency_ms"]
    if latency is None:
        raise MeasurementError(f"{row.name} on {url}: no message arrived in the measured period")
    return Sample(
        per_second=report["consumed_per_second"],
        microseconds=report["processor_us_per_message"],
        p50_ms=latency["p50"],
        p99_ms=latency["p99"],
        load_tool_cores=report["load_tool_cores"],
        resident_mb=resident_kib(pid) * 1024 / 1e6,
    )
