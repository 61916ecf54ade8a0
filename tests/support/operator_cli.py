"""Operator command lines: `warren ctl` on a data folder, or `rabbitmqctl`."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from warren.cli.ctl.main import main
from warren.core.errors import UsageError


class CommandResult(NamedTuple):
    """Exit status and output of a command."""

    status: int
    output: str
    errors: str

    @property
    def lines(self) -> list[str]:
        return self.output.splitlines()


Run: TypeAlias = Callable[..., CommandResult]


class Operator:
    """Runs commands for one broker."""

    def __init__(self, run: Run, url: str, *, is_warren: bool) -> None:
        self.run = run
        self.url = url
        self.is_warren = is_warren

    def __call__(self, *words: str) -> list[str]:
        """Run a command that must succeed; return its lines without its announcement."""
        result = self.run("-q", *words)
        assert result.status == 0, result
        return result.lines

    def refused(self, *words: str) -> str:
        """Run a command that must fail; return its error output."""
        result = self.run("-q", *words)
        assert result.status, result
        return result.errors

    def table(self, *words: str) -> list[dict[str, Any]]:
        """Return the rows that a command lists."""
        result = self.run(*words, "--formatter", "json")
        assert result.status == 0, result
        rows: list[dict[str, Any]] = json.loads(result.output)
        return rows

    def queue(self, name: str, *items: str) -> dict[str, Any]:
        """Return items of one queue."""
        (row,) = [row for row in self.table("list_queues", "name", *items) if row["name"] == name]
        return row


def warren_ctl(data_dir: Path) -> Run:
    """Return a runner for `warren ctl` in this process, which starts faster than a child."""

    def run(*words: str) -> CommandResult:
        output, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            try:
                status = main(["--data-dir", str(data_dir), *words])
            except UsageError as error:
                status = 2
                errors.write(f"warren ctl: {error}\n")
        return CommandResult(int(status), output.getvalue(), errors.getvalue())

    return run
