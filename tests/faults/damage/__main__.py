"""Damage each kind of file of a data folder in each way, and judge what the broker makes of it (`make damage`).

python -m tests.faults.damage --seeds 3 [--first-seed N] [--file NAME] [--damage NAME] [--end NAME] [--page]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tests.faults.damage.double_damage import run_double_damage
from tests.faults.damage.file_damage import DamageKind
from tests.faults.damage.filled_folder import End
from tests.faults.damage.folder_files import KINDS
from tests.faults.damage.matrix import fill_folders, run_matrix
from tests.faults.damage.page import PAGE, RESULTS, Results, Row, generated, row_of
from tests.faults.damage.trial import TrialResult
from warren.core.errors import ExitStatus


def line_of(result: TrialResult) -> str:
    """Return a result as one line, which begins with the arguments that repeat it."""
    trial, verdict = result.trial, result.verdict
    words = (
        f"--first-seed {trial.seed} --file '{trial.file.name}' --damage '{trial.damage.value}' "
        f"--end '{result.filled.end.value}'"
    )
    text = " ".join(verdict.text.split())[: 200 if verdict.accepted else 900]
    reports = "" if not verdict.reports else f" | {len(verdict.reports)} reports: {verdict.reports[0][:200]}"
    return (
        f"{verdict.outcome.value.upper()} {words} | {result.damaged} | {verdict.summary()} | {text}{reports}"
    )


def commit() -> str:
    """Return the short name of the commit that is checked out."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.damage", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds (default: %(default)s)")
    parser.add_argument("--first-seed", type=int, default=1, help="the first of them (default: %(default)s)")
    parser.add_argument(
        "--file", action="append", choices=[kind.name for kind in KINDS], help="only these kinds of files"
    )
    parser.add_argument("--damage", choices=[kind.value for kind in DamageKind], help="only this damage")
    parser.add_argument(
        "--end", choices=[end.value for end in End], help="only after this end of the last run"
    )
    parser.add_argument("--jobs", type=int, default=2, help="trials at a time (default: %(default)s)")
    parser.add_argument(
        "--page", action="store_true", help="store the results, and write docs/damage.md of them"
    )
    options = parser.parse_args(arguments)
    whole = not (options.file or options.damage or options.end)
    if options.page and not whole:
        parser.error("--page needs the whole matrix")
    started = time.monotonic()
    seeds = list(range(options.first_seed, options.first_seed + options.seeds))
    refusals: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="warren-damage-") as folder:
        filled = fill_folders(Path(folder))
        if whole:
            refusals = [row for each in filled.values() for row in run_double_damage(each, seeds[0])]
        results = run_matrix(
            filled,
            seeds,
            jobs=options.jobs,
            only=lambda trial, end: (
                (not options.file or trial.file.name in options.file)
                and options.damage in (None, trial.damage.value)
                and options.end in (None, end.value)
            ),
            report=lambda result: print(line_of(result), flush=True),
        )
    counts = Counter(result.verdict.outcome for result in results)
    faults = [result for result in results if not result.verdict.accepted]
    print(
        f"damage: {'failed' if faults else 'passed'}: seeds {seeds[0]} to {seeds[-1]}, {len(results)} trials in "
        f"{time.monotonic() - started:.0f} s: "
        + ", ".join(f"{counts[outcome]} {outcome.value}" for outcome in counts)
    )
    for result in faults:
        print(line_of(result), file=sys.stderr)
    if options.page:
        results_of_all = Results(
            datetime.now(UTC).date().isoformat(),
            commit(),
            seeds,
            round(time.monotonic() - started),
            [row_of(result) for result in results],
            refusals,
        )
        results_of_all.save(RESULTS)
        PAGE.write_text(generated(results_of_all))
    return ExitStatus.FAILED if faults else ExitStatus.SUCCESS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
