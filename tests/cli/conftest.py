"""Fixtures: the command `warren` in this process, modules with Apps, and names of queues."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import pytest

from tests.support.polling import PATIENCE
from warren.cli import dispatch


@dataclass(frozen=True)
class Said:
    """Exit status and output of a command."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Command(Protocol):
    def __call__(self, *words: str | Path) -> Said: ...


Module = Callable[[str], str]


@pytest.fixture
def warren(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return a function that runs `warren WORDS`. The environment names no broker."""
    # Set first, so that a value that a command sets is removed after the test.
    monkeypatch.setenv("AMQP_URL", "")
    monkeypatch.delenv("AMQP_URL")
    # Wide, independent of the terminal.
    monkeypatch.setenv("COLUMNS", "200")
    # On a machine that stands still, connecting takes a second, after which a command says that it waits.
    monkeypatch.setattr("warren.cli.connecting.SILENT_SECONDS", PATIENCE)

    def run(*words: str | Path) -> Said:
        capsys.readouterr()
        status = dispatch.main([str(word) for word in words])
        return Said(int(status), *capsys.readouterr())

    return run


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Module]:
    """Return a function that writes a module with a unique name into the working folder, and returns the name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    made: list[str] = []

    def write(text: str) -> str:
        name = f"m{uuid4().hex[:12]}"
        (tmp_path / f"{name}.py").write_text(text)
        made.append(name)
        return name

    yield write
    for name in made:
        sys.modules.pop(name, None)


@pytest.fixture
def name() -> str:
    """Return a prefix for everything that a test declares, so that tests can share a broker."""
    return f"t{uuid4().hex[:12]}"
