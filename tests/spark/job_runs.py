"""Jobs in the Spark session that the tests share, with the arguments of the command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from warren.cli.pipeline import parse, run


def run_job(job: str, source: str, out: Path, *words: str) -> Any:
    """Run a job and return its summary.

    :param words: further arguments of the command line: `--stream NAME`, and the job's own options
    """
    summary, _ = run(parse([job, "--source", source, "--out", str(out), *words]))
    return summary
