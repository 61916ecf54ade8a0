"""Kills of a broker process while it upgrades a data folder of an older format; no message of the folder may be lost."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.broker.test_frozen_folders import FROZEN, check_content
from tests.faults.chaos.failures import ChaosFailure
from tests.support.blocking_client import Connection
from tests.support.broker_process import READY, BrokerProcess
from tests.support.processes import Child

MOST_CHANGES = 60
"""Changes of the disk at the start, within which the kill is drawn. A start that makes fewer is killed when it is ready."""


class UpgradedBroker(BrokerProcess):
    """A broker process that kills itself before a change of the disk."""

    changes = 0
    """Number of the change before which it is killed; 0 for never."""

    def command(self) -> list[str | Path]:
        words = super().command()
        at = words.index("broker")
        return [sys.executable, "-m", "tests.faults.chaos.killed_at_call", str(self.changes), *words[at:]]


def names() -> list[str]:
    """Return the names of the frozen folders, one of each earlier format."""
    return sorted(path.name for path in FROZEN.iterdir() if (path / "format").exists())


def run_round(name: str, changes: list[int], clean: bool, folder: Path) -> int:
    """Kill starts on a copy of a frozen folder, then start on it and check each message.

    :param changes: for each killed start, number of the change before which it is killed.
    :param clean: the broker that wrote the folder was stopped cleanly.
    :param folder: the copy, which must not exist.
    :return: number of starts that were killed before they were ready.
    :raises ChaosFailure: a start failed by itself, or the folder does not hold what it should.
    """
    shutil.copytree(FROZEN / name, folder)
    if not clean:
        (folder / "log" / "clean").unlink()
    broker = UpgradedBroker(folder)
    killed = 0
    for number in changes:
        broker.changes = number
        with Child(broker.command()) as child:
            try:
                child.wait_for_line(READY, 120)
            except AssertionError:
                status = child.wait()
                if status != -9:
                    errors = child.errors[-2000:]
                    raise ChaosFailure(f"{name}: start {changes} ended with {status}: {errors}") from None
                killed += 1
            else:
                child.kill()
    broker.changes = 0
    with broker, Connection(broker.url) as connection:
        try:
            # The first killed start may have been before or after the folder counts as in use.
            check_content(connection.channel(), clean=None if changes else clean, name=name)
        except AssertionError as error:
            raise ChaosFailure(f"{name}, killed before changes {changes}: {error}") from error
        assert broker.child is not None
        damage = [line for line in broker.child.errors.splitlines() if " ERROR " in line]
    if damage:
        raise ChaosFailure(f"{name}, killed before changes {changes}: {damage[0]}")
    return killed


def run_upgrades(rounds: int, random: Random, folder: Path, report: Callable[[str], None]) -> str:
    """Run rounds on random folders; return what they reached.

    :raises ChaosFailure: a folder does not hold what it should; it is left in place.
    """
    killed = 0
    for number in range(1, rounds + 1):
        name = random.choice(names())
        changes = [random.randint(1, MOST_CHANGES) for _ in range(random.randint(1, 3))]
        path = folder / f"round-{number}"
        killed += run_round(name, changes, random.random() < 0.5, path)
        shutil.rmtree(path)
        report(f"{number} of {rounds} rounds: {name}, killed before changes {changes}")
    return f"{killed} starts killed during the upgrade"
