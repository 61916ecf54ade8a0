"""Jobs as the command runs them, in the session that the tests share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from warren.cli.pipeline import parse, run


def run_job(job: str, source: str, out: Path, *words: str) -> Any:
    """The job's summary.

    :param words: what else the command line says: `--stream NAME`, and the job's own options
    """
    summary, _ = run(parse([job, "--source", source, "--out", str(out), *words]))
    return summary
