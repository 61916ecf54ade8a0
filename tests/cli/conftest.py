"""The command `warren` in this process: its exit status and what it prints."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import pytest

from warren.cli import dispatch


@dataclass(frozen=True)
class Said:
    """What one command ended with and printed."""

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
    """Run `warren WORDS`; no broker is named by the environment."""
    # Set first, so that what a command puts there is gone after the test as well.
    monkeypatch.setenv("AMQP_URL", "")
    monkeypatch.delenv("AMQP_URL")
    # Wide, whatever the terminal of the tests is.
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words: str | Path) -> Said:
        capsys.readouterr()
        status = dispatch.main([str(word) for word in words])
        return Said(int(status), *capsys.readouterr())

    return run


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Module]:
    """Write a module of this name's own into the folder that commands run in: its name."""
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
    """A prefix for all that a test declares, so that tests may share a broker."""
    return f"t{uuid4().hex[:12]}"
