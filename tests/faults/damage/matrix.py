"""The whole matrix: every kind of file, every damage, after a kill and after a clean stop; several seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from tests.faults.damage.file_damage import DamageKind, Place
from tests.faults.damage.filled_folder import End, FilledFolder, fill_folder
from tests.faults.damage.folder_files import KINDS, check_kinds
from tests.faults.damage.trial import Trial, TrialResult, run_trial


def fill_folders(parent: Path) -> dict[End, FilledFolder]:
    """Fill one folder for each end of the last run; check that the table of kinds fits their files."""
    filled = {end: fill_folder(parent / end.name.lower(), end) for end in End}
    check_kinds(*(folder.path for folder in filled.values()))
    return filled


def trials_of(seed: int) -> Iterator[Trial]:
    """Yield one trial for each file and damage. Three successive seeds damage each file in all three places."""
    places = list(Place)
    for row, file in enumerate(KINDS):
        for column, kind in enumerate(DamageKind):
            yield Trial(file, kind, places[(seed + row + column) % len(places)], seed)


def run_matrix(
    filled: dict[End, FilledFolder],
    seeds: list[int],
    *,
    jobs: int = 2,
    only: Callable[[Trial, End], bool] = lambda trial, end: True,
    report: Callable[[TrialResult], None] = lambda result: None,
) -> list[TrialResult]:
    """Run all trials of the seeds; return the results in the order of the table.

    :param jobs: trials at a time.
    :param only: the trials to run.
    :param report: called with each result as soon as it is known.
    """

    work = [(trial, end) for seed in seeds for trial in trials_of(seed) for end in End if only(trial, end)]
    results = []
    # Processes: `warren ctl` redirects the standard output of the process that it runs in.
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        for result in pool.map(run_trial, *zip(*((trial, filled[end]) for trial, end in work), strict=True)):
            if result is not None:
                report(result)
                results.append(result)
    return results
