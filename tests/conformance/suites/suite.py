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
    """Broker that a suite is run against."""

    name: str
    host: str
    port: int
    tls_port: int
    authority: Path
    """Certificate of the authority that signed the broker's, in a folder of certificates."""

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{self.host}:{self.port}/"

    def certificate(self, name: str) -> tuple[Path, Path]:
        """Return a client's certificate and key: `client`, signed by the broker's authority, or `stranger`."""
        folder = self.authority.parent
        return folder / f"{name}.pem", folder / f"{name}.key"


def unprepared(folder: Path, target: Target) -> None:
    """Leave the sources unchanged."""


def undisturbed(target: Target) -> Mapping[str, str]:
    """Return no environment variables."""
    return {}


@dataclass(frozen=True)
class Suite:
    """Test suite of one client."""

    name: str
    requires: Sequence[str]
    """Packages that pip installs."""
    command: Sequence[str]
    """Arguments for `python`."""
    repository: str = ""
    """Git URL of the sources; empty if they are in this folder."""
    environment: Callable[[Target], Mapping[str, str]] = undisturbed
    prepare: Callable[[Path, Target], None] = unprepared
    """Changes to the sources, for fixed addresses and certificates."""
    exceptions: Mapping[str, str] = field(default_factory=dict)
    """Reasons for tests that may fail, by a part of their name."""
    timeout: float = 900.0
    """Seconds."""


class Missing(Exception):
    """A requirement of a suite is unavailable; the message is one line."""


@dataclass(frozen=True)
class Outcome:
    """Result of a suite."""

    closing: str
    """Last line of pytest, or of the output."""
    unexpected: Sequence[str]
    excused: Sequence[str]
    output: str


def obtain(suite: Suite, folder: Path, sources: Path | None) -> Path:
    """Return the suite's sources, in a folder that may be changed.

    :param sources: folder with git repositories, `NAME` or `OWNER+NAME/repo`, to use instead of the public ones
    :raises Missing: if they are unavailable
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
    """Return the Python of an environment with the suite's packages.

    :raises Missing: if a package is unavailable
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
        error_lines = done.stderr.strip().splitlines() or ["without a word"]
        raise Missing(f"{failure}: {error_lines[-1]}")


def play(suite: Suite, target: Target, folder: Path, sources: Path | None = None) -> Outcome:
    """Run a suite against a broker.

    :raises Missing: if a requirement is unavailable
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
