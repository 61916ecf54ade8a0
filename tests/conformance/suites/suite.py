"""Test suites of public clients: source, requirements, how to run them, and expected failures."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
CLOSING = re.compile(r"^=*\s*((?:\d+ \w+,? ?)+.* in [\d.:]+s?.*?)\s*=*$", re.MULTILINE)
INSTALL_SECONDS = 900


@dataclass(frozen=True)
class Target:
    """The broker that a suite is run against."""

    name: str
    host: str
    port: int
    tls_port: int
    authority: Path
    """The certificate of who has signed the broker's; a folder of certificates stands around it."""

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{self.host}:{self.port}/"

    def certificate(self, name: str) -> tuple[Path, Path]:
        """A client's certificate and key: `client`, which the broker's authority has signed, or `stranger`."""
        folder = self.authority.parent
        return folder / f"{name}.pem", folder / f"{name}.key"


def unprepared(folder: Path, target: Target) -> None:
    """The sources are right as they are."""


def undisturbed(target: Target) -> Mapping[str, str]:
    """Nothing of the environment has to be set."""
    return {}


@dataclass(frozen=True)
class Suite:
    """One client's tests."""

    name: str
    requires: Sequence[str]
    """What pip installs for it."""
    command: Sequence[str]
    """Behind `python`."""
    repository: str = ""
    """Where git gets the sources; empty if they are part of this folder."""
    environment: Callable[[Target], Mapping[str, str]] = undisturbed
    prepare: Callable[[Path, Target], None] = unprepared
    """Changes to the sources: addresses and certificates that they fix."""
    exceptions: Mapping[str, str] = field(default_factory=dict)
    """Tests that may fail, by a part of their name: why."""
    timeout: float = 900.0
    """Seconds."""


class Missing(Exception):
    """What a suite needs and cannot be had here, in one line."""


@dataclass(frozen=True)
class Outcome:
    """How a suite went."""

    closing: str
    """pytest's last line, or the last one at all."""
    unexpected: Sequence[str]
    excused: Sequence[str]
    output: str


def obtain(suite: Suite, folder: Path, sources: Path | None) -> Path:
    """The suite's sources, in a folder that may be changed.

    :param sources: a folder with git repositories, `NAME` or `OWNER+NAME/repo`, in the place of the public ones
    :raises Missing: if they cannot be had
    """
    if not suite.repository:
        return Path(__file__).parent
    where = suite.repository
    if sources is not None:
        owner, _, project = where.removesuffix(".git").rpartition("/")
        names = (project, f"{owner.rpartition('/')[2]}+{project}/repo")
        found = [sources / name for name in names if (sources / name).exists()]
        if not found:
            raise Missing(f"{sources} has no {project}")
        where = str(found[0])
    checkout = folder / suite.name
    run(["git", "clone", "--quiet", "--depth", "1", where, str(checkout)], folder, f"no sources from {where}")
    return checkout


def install(suite: Suite, folder: Path) -> Path:
    """The interpreter of an environment with what the suite needs.

    :raises Missing: if a package cannot be had
    """
    environment = folder / f"{suite.name}-env"
    python = environment / "bin" / "python"
    run([sys.executable, "-m", "venv", str(environment)], folder, "no virtual environment")
    words = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *suite.requires]
    run(words, folder, f"pip cannot install {' '.join(suite.requires)}")
    return python


def run(words: Sequence[str], folder: Path, failure: str) -> None:
    try:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"{failure}: {error}") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["without a word"]
        raise Missing(f"{failure}: {said[-1]}")


def play(suite: Suite, target: Target, folder: Path, sources: Path | None = None) -> Outcome:
    """Run a suite against a broker.

    :raises Missing: if what it needs cannot be had
    """
    checkout = obtain(suite, folder, sources)
    python = install(suite, folder)
    suite.prepare(checkout, target)
    ours = ("PYTHONPATH", "AMQP_URL")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    environment.update(suite.environment(target))
    try:
        done = subprocess.run(
            [str(python), *suite.command],
            cwd=checkout,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=suite.timeout,
        )
    except subprocess.TimeoutExpired:
        return Outcome(f"did not end in {suite.timeout:.0f} s", ["all of it"], [], "")
    failed = sorted(set(FAILED.findall(done.stdout)))
    excused = [test for test in failed if any(part in test for part in suite.exceptions)]
    unexpected = [test for test in failed if test not in excused]
    closing = CLOSING.findall(done.stdout)
    if done.returncode and not failed:
        unexpected.append(f"ended with {done.returncode}")
    last = closing[-1] if closing else (done.stdout.strip().splitlines() or ["no output"])[-1]
    return Outcome(last, unexpected, excused, done.stdout)
