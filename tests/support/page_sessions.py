"""Type the commands of a documentation page into terminals, and compare what they print with what the page shows.

A page is a session: blocks of code with a file name as title are files of the session's folder, and blocks of the language
`console` are terminals, named by their titles. In a terminal, lines that begin with `$ ` are commands, `^C` interrupts the
command that runs, `^\\` ends it at once, and all other lines are expected output. `...` in expected output stands for any
text, a line `...` for any number of lines. Dates and message ids are equal to any others. Output of a service may come in
any order.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from tests.support.polling import wait_until

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$", re.M | re.S)
SNIPPET = re.compile(r'^--8<-- "(?P<path>[^"]+)"$', re.M)
SET_UP = ("mkdir ", "cd ", "python3 -m venv ", ". ", "pip install ", "docker ")
"""Commands that a page tells its reader to type, and for which the tests have something else."""
KEYS = {"^C": signal.SIGINT, "^\\": signal.SIGQUIT}
"""Keys that end the command of a terminal, with their signals."""
SERVICES = ("warren broker", "warren run", "uvicorn")
"""Commands that run until they are stopped."""
VARYING = (
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?"), "<time>"),
    (re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "<id>"),
)


@dataclass(frozen=True)
class Block:
    """A block of code on a page, with its snippets."""

    language: str
    title: str
    text: str


def page_blocks(page: Path, *, section: str | None = None, without: str | None = None) -> list[Block]:
    """Return the blocks of a page.

    :param section: return those below this heading only
    :param without: leave out those below this heading
    """
    parts = re.split(r"^## ", page.read_text(), flags=re.M)
    if section is not None:
        parts = [part for part in parts if part.startswith(f"{section}\n")]
        assert parts, f"{page.name} has no section {section!r}"
    kept = [part for part in parts if without is None or not part.startswith(f"{without}\n")]
    return [
        Block(found["language"], found["title"] or "", SNIPPET.sub(_snippet, found["text"]))
        for part in kept
        for found in BLOCK.finditer(part)
    ]


def _snippet(found: re.Match[str]) -> str:
    return (ROOT / found["path"]).read_text().rstrip("\n")


class PageSession:
    """A folder, and terminals in it. Leaving the `with` block ends every service."""

    def __init__(
        self,
        folder: Path,
        *,
        typed: Mapping[str, str],
        printed: Mapping[str, str],
        environment: Mapping[str, str],
    ) -> None:
        """
        :param typed: text of commands on the page, such as `amqp://localhost`, and what is typed instead
        :param printed: text of output, such as a port, and what the page shows instead
        :param environment: added to this process's in each terminal
        """
        self.folder = folder
        self._typed = typed
        self._printed = printed
        programs = folder / ".programs"
        programs.mkdir()
        for name, module in {
            "warren": "warren.cli.dispatch",
            "uvicorn": "uvicorn",
            "pytest": "pytest -p no:asyncio",  # as for a reader, who has no pytest-asyncio
        }.items():
            _write_program(programs / name, f"-m {module}")
        _write_program(programs / "python", "")
        left_out = {"AMQP_URL", "REDIS_URL", "PYTEST_ADDOPTS"}
        inherited = {name: value for name, value in os.environ.items() if name not in left_out}
        self._environment = {
            **inherited,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONUNBUFFERED": "1",
            **environment,
        }
        self._terminals: dict[str, _Terminal] = {}

    def save_files(self, blocks: list[Block]) -> None:
        """Save the blocks that have a file name as title."""
        for block in blocks:
            if block.language != "console" and block.title:
                (self.folder / block.title).write_text(block.text)

    def play(self, blocks: list[Block]) -> None:
        """Save the files of the blocks, type their commands, and compare the output.

        :raises AssertionError: the output differs, or does not come
        """
        for block in blocks:
            if block.language == "console":
                for command, expected in _commands(block.text):
                    self._type(self._terminal(block.title), command, expected)
            else:
                self.save_files([block])

    def _terminal(self, title: str) -> _Terminal:
        if title not in self._terminals:
            self._terminals[title] = _Terminal(self.folder, dict(self._environment), self._printed)
        return self._terminals[title]

    def _type(self, terminal: _Terminal, command: str, expected: list[str]) -> None:
        for shown, typed in self._typed.items():
            command = command.replace(shown, typed)
        if command.startswith(SET_UP):
            assert not [line for line in expected if line != "..."], f"no test sees the output of {command!r}"
        elif command.startswith("export "):
            terminal.export(command)
        elif command in KEYS:
            terminal.end(KEYS[command])
        elif not command:
            terminal.expect(expected)
        elif re.sub(r"^(?:\w+=\S* )+", "", command).startswith(SERVICES):
            terminal.end(signal.SIGINT)
            terminal.start(command)
            terminal.expect(expected)
        else:
            terminal.run(command, expected)

    def __enter__(self) -> PageSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for terminal in reversed(self._terminals.values()):
            terminal.end(signal.SIGTERM)


def _write_program(path: Path, arguments: str) -> None:
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {arguments} "$@"\n')
    path.chmod(0o755)


def _commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each command of a terminal with its expected output; an empty one for output of what runs already."""
    command, expected = "", list[str]()
    for line in text.splitlines():
        if line.startswith("$ ") or line in KEYS:
            if command or expected:
                yield command, expected
            command, expected = line.removeprefix("$ "), []
        else:
            expected.append(line)
    yield command, expected


@dataclass
class _Terminal:
    folder: Path
    environment: dict[str, str]
    printed: Mapping[str, str]
    _service: subprocess.Popen[bytes] | None = None
    _command: str = ""
    _output: Path = Path()
    _seen: list[str] = field(default_factory=list)
    """Lines of the service that were expected, and came."""

    def export(self, command: str) -> None:
        for assignment in shlex.split(command)[1:]:
            name, _, value = assignment.partition("=")
            self.environment[name] = value

    def run(self, command: str, expected: list[str]) -> None:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=280,
            check=False,
        )
        pattern = "".join(r"(?:.*\n)*?" if line == "..." else _pattern(line) + r"\n" for line in expected)
        printed = done.stdout if done.stdout.endswith("\n") or not done.stdout else f"{done.stdout}\n"
        shown = "\n".join(expected)
        assert re.fullmatch(pattern, self._comparable(printed)), (
            f"$ {command}\nthe page shows:\n{shown}\nit printed:\n{printed}"
        )

    def start(self, command: str) -> None:
        self._command, self._seen = command, []
        self._output = self.folder / f".output-{len(list(self.folder.glob('.output-*')))}"
        with self._output.open("wb") as output:
            self._service = subprocess.Popen(
                ["bash", "-c", command],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def expect(self, expected: list[str]) -> None:
        """Wait until the service has printed each of these lines, in any order, since the last such call."""
        wanted = [line for line in expected if line != "..."]
        try:
            wait_until(lambda: self._ended() or self._has(wanted), f"printed: {wanted}", timeout=120)
            assert self._has(wanted)
        except AssertionError:
            raise AssertionError(
                f"$ {self._command}\nthe page shows:\n" + "\n".join(wanted) + f"\nit printed:\n{self._text()}"
            ) from None
        self._seen += self._matched(wanted) or []

    def _has(self, wanted: list[str]) -> bool:
        return self._matched(wanted) is not None

    def _matched(self, wanted: list[str]) -> list[str] | None:
        lines = self._comparable(self._text()).splitlines()
        for line in self._seen:
            lines.remove(line)
        matched = []
        for expected in wanted:
            found = next((line for line in lines if re.fullmatch(_pattern(expected), line)), None)
            if found is None:
                return None
            lines.remove(found)
            matched.append(found)
        return matched

    def _text(self) -> str:
        # Without a line that is not complete yet.
        return self._output.read_text(errors="replace").rpartition("\n")[0]

    def _ended(self) -> bool:
        return self._service is None or self._service.poll() is not None

    def _comparable(self, text: str) -> str:
        for printed, shown in self.printed.items():
            text = text.replace(printed, shown)
        return _without_varying(text)

    def end(self, number: signal.Signals) -> None:
        """Send a signal to the service and its children, and wait for its end; for a minute, then kill it."""
        if self._service is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._service.pid, number)
        try:
            self._service.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self._service.pid, signal.SIGKILL)
            self._service.wait()
        self._service = None


def _without_varying(text: str) -> str:
    for varying, name in VARYING:
        text = varying.sub(name, text)
    return text


def _pattern(line: str) -> str:
    return ".*".join(re.escape(part) for part in _without_varying(line).split("..."))
