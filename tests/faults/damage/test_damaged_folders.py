"""A part of `make damage`: one file of a data folder is damaged, and the broker recovers, reports or refuses.

In tier `test` these are two trials; in tier `all`, each kind of file is damaged once for each end of the last run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from tests.faults.damage.double_damage import COPIES, run_double_damage
from tests.faults.damage.file_damage import DamageKind, Place, damage
from tests.faults.damage.filled_folder import End, FilledFolder, fill_folder
from tests.faults.damage.folder_files import KINDS, check_kinds
from tests.faults.damage.judge import Outcome, judge
from tests.faults.damage.page import PAGE, RESULTS, Results, generated
from tests.faults.damage.trial import Trial, copied, judge_folder, run_broker, run_trial

BY_NAME = {kind.name: kind for kind in KINDS}
Filled = Callable[[End], FilledFolder]


@pytest.fixture(scope="module")
def filled(starts_processes: None, tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """Return a function that returns the filled folder for an end of the last run."""
    folders: dict[End, FilledFolder] = {}

    def fill(end: End) -> FilledFolder:
        if end not in folders:
            folders[end] = fill_folder(tmp_path_factory.mktemp("damage") / "data", end)
        return folders[end]

    return fill


def test_an_intact_folder_loses_and_reports_nothing(filled: Filled) -> None:
    folder = filled(End.STOP)
    with copied(folder) as path:
        verdict = judge_folder(path, "lock", folder.expected)
    assert (verdict.outcome, verdict.reports) == (Outcome.RECOVERED, []), verdict


def test_a_loss_is_reported_and_would_be_found_without_its_report(filled: Filled) -> None:
    """The judge itself is tested: with the reports taken out of the log, the same losses are silent."""
    folder = filled(End.STOP)
    with copied(folder) as path:
        file = BY_NAME["last log segment"].pick(path, Random(1))
        assert file is not None
        damage(path, file, DamageKind.MISSING, Place.MIDDLE, Random(1))
        first = run_broker(path, folder.expected, "first")
        second = run_broker(path, folder.expected, "second")
    reported = judge(file, folder.expected, first, second, [])
    assert reported.outcome is Outcome.REPORTED, reported
    silent = judge(file, folder.expected, replace(first, errors=""), second, [])
    assert silent.outcome is Outcome.SILENT


@pytest.mark.slow
@pytest.mark.parametrize("end", [End.KILL, End.STOP])
@pytest.mark.parametrize("row", range(len(KINDS)), ids=[kind.name for kind in KINDS])
def test_damage_is_recovered_reported_or_refused(filled: Filled, row: int, end: End) -> None:
    damages = list(DamageKind)
    kind = damages[(row + 2 * (end is End.STOP)) % len(damages)]
    result = run_trial(Trial(KINDS[row], kind, list(Place)[row % 3], 1), filled(end))
    assert result is None or result.verdict.accepted, result


@pytest.mark.slow
@pytest.mark.parametrize("kind", DamageKind)
def test_definitions_that_are_only_in_the_write_ahead_file_are_recovered(
    filled: Filled, kind: DamageKind
) -> None:
    trial = Trial(BY_NAME["definitions.db-wal"], kind, Place.MIDDLE, 1)
    result = run_trial(trial, filled(End.FIRST_KILL))
    assert result is not None
    assert result.verdict.outcome is Outcome.RECOVERED, result


@pytest.mark.slow
@pytest.mark.parametrize("files", COPIES, ids=["definitions", "format"])
def test_with_all_copies_damaged_the_broker_refuses_or_an_option_accepts_the_loss(
    filled: Filled, files: tuple[str, ...]
) -> None:
    rows = run_double_damage(filled(End.KILL), 1, [files])
    outcomes = [row.outcome for row in rows]
    accepted = [Outcome.REPORTED.value] if files[0] == "definitions.db" else []
    assert outcomes == [Outcome.REFUSED.value, *accepted] * 2


@pytest.mark.slow
def test_every_file_of_a_folder_is_of_a_kind(filled: Filled) -> None:
    check_kinds(*(filled(end).path for end in End))


def test_the_page_is_generated_from_the_stored_results() -> None:
    results = Results.load(RESULTS)
    assert PAGE.read_text() == generated(results), "python -m tests.faults.damage.page"
    accepted = {Outcome.RECOVERED.value, Outcome.REPORTED.value, Outcome.REFUSED.value}
    assert {row.outcome for row in results.rows} <= accepted
    cells = {(row.file, row.damage) for row in results.rows}
    missing = [
        (kind.name, damaged.value)
        for kind in KINDS
        for damaged in DamageKind
        if (kind.name, damaged.value) not in cells
    ]
    assert not missing, "run make damage SEEDS=3 PAGE=1"
