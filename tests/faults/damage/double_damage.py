"""Both copies of the definitions, or of the format file, are damaged: the broker refuses, or an option accepts the loss."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from tests.faults.damage.file_damage import DamageKind, Place, damage
from tests.faults.damage.filled_folder import FilledFolder
from tests.faults.damage.folder_files import data_files
from tests.faults.damage.judge import Outcome
from tests.faults.damage.observed_state import definitions_of, read_queue, url_of
from tests.faults.damage.page import Row, without_paths
from tests.faults.damage.trial import accepting_option, copied, judge_folder
from tests.support.blocking_client import Connection
from tests.support.broker_process import PATIENT, BrokerProcess

COPIES = (
    ("definitions.db", "definitions.db-wal", "definitions.journal"),
    ("format", "format.copy"),
)
"""Files that are copies of each other, with their write-ahead files."""


class NotAcceptedError(AssertionError):
    """The broker neither refused nor named an option that accepts the loss, or lost more than the definitions."""


def run_double_damage(
    filled: FilledFolder, seed: int, groups: Sequence[tuple[str, ...]] = COPIES
) -> list[Row]:
    """Damage all copies; return the outcomes of a start without and, if the line names one, with the option.

    :param groups: files that are copies of each other.
    :raises NotAcceptedError: an outcome is not as documented.
    """
    rows = []
    for group in groups:
        random = Random(f"{seed} {group}")
        for kind, place in ((DamageKind.ZEROED_BLOCK, Place.HEADER), (DamageKind.MISSING, Place.HEADER)):
            with copied(filled) as folder:
                files = [path for path in group if path in data_files(folder)]
                for path in files:
                    damage(folder, path, kind, place, random)
                rows += _run(filled, folder, files, kind, seed)
    return rows


def _run(filled: FilledFolder, folder: Path, files: list[str], kind: DamageKind, seed: int) -> list[Row]:
    def row(change: str, outcome: Outcome, losses: dict[str, int], reports: list[str]) -> Row:
        names = ", ".join(files)
        shown = [without_paths(report) for report in reports]
        return Row(names, kind.value, filled.end.value, "header", seed, change, outcome.value, losses, shown)

    refused = judge_folder(folder, files[0], filled.expected)
    if refused.outcome is not Outcome.REFUSED:
        raise NotAcceptedError(f"{files} {kind.value} after {filled.end.value}: {refused}")
    rows = [row("without an option", Outcome.REFUSED, {}, [refused.text])]
    option = accepting_option(refused.text)
    if option is None:
        return rows
    accepted = judge_folder(folder, files[0], filled.expected, option)
    if accepted.outcome is not Outcome.REPORTED:
        raise NotAcceptedError(f"{option}: {files} {kind.value} after {filled.end.value}: {accepted}")
    missing = missing_messages(filled, folder)
    if missing:
        raise NotAcceptedError(f"{option}: {len(missing)} messages are in no queue: {sorted(missing)[:10]}")
    rows.append(row(option, Outcome.REPORTED, accepted.counts(), accepted.reports))
    return rows


def missing_messages(filled: FilledFolder, folder: Path) -> set[str]:
    """Start a broker; return the tokens of the messages that no queue of any name holds."""
    wanted = {message.token for queue in filled.expected.queues.values() for message in queue.messages}
    with BrokerProcess(folder, *PATIENT) as broker:
        queues = _queues(folder, lambda arguments: arguments.get("x-queue-type") != "stream")
        for vhost, name in queues:
            address, _ = url_of(broker.url, f"{vhost}:" if vhost != "/" else "")
            with Connection(address) as connection:
                wanted -= {message.token for message in read_queue(connection.channel(), name)[0]}
    return wanted


def _queues(folder: Path, selected: Callable[[dict[str, object]], bool]) -> list[tuple[str, str]]:
    items = [
        json.loads(text.partition(" ")[2]) for text in definitions_of(folder) if text.startswith("queues ")
    ]
    return [(item["vhost"], item["name"]) for item in items if selected(item["arguments"])]
