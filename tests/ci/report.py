"""`python -m tests.ci.report FOLDER`: print the results of a check as a table, and write them to `report.md` in its folder.

The exit status is 1 if a step failed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from datetime import date
from pathlib import Path

from tests.ci.step import Record, records


def table(title: str, results: list[Record]) -> str:
    """Return the results as Markdown: a row for each step, and the flaky tests below."""
    lines = [f"# {title}", "", "| Step | Result | Seconds | Flaky |", "|---|---|---:|---:|"]
    for record in results:
        detail = f": {record.closing}" if record.closing else ""
        result = "passed" if record.passed else "**failed**"
        lines.append(f"| {record.name} | {result}{detail} | {record.seconds} | {len(record.flaky)} |")
    flaky = [f"- {record.name}: `{test}`" for record in results for test in record.flaky]
    if flaky:
        lines += ["", "Flaky:", "", *flaky]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.ci.report", description=__doc__)
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    folder: Path = parser.parse_args().folder
    results = records(folder)
    if not results:
        sys.exit(f"report: {folder} has no results of steps")
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    text = table(f"{folder.name}, {date.today()}, commit {commit or 'unknown'}", results)
    (folder / "report.md").write_text(text)
    print(text, end="")
    return 0 if all(record.passed for record in results) else 1


if __name__ == "__main__":
    sys.exit(main())
