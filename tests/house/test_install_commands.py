"""Install commands: each `pip install` of Warren in documentation, examples and error texts can be copied to a shell."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = set(PROJECT["optional-dependencies"])
FOLDERS = ("docs", "examples", "broker", "cli", "core", "patterns", "pipeline", "sdk", "wire")
SUFFIXES = {".md", ".py", ".toml", ".yaml", ".yml", ".service", ".sh", ".html"}

COMMAND = re.compile(
    r"pip3? install((?:[ \t]+(?:-[-\w.:/]+|'[^'\n]*'|\"[^\"\n]*\"|[A-Za-z][-\w.]*(?:\[[\w,{}.]*\])?(?:[=<>~]=?[\w.]+)?))+)"
)
"""`pip install` with its options and requirements; it ends at a comma, a bracket or the end of the line."""
REQUIREMENT = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"|[^\s'\"]+")


def files() -> list[Path]:
    """Return the files in which readers find install commands."""
    found = [ROOT / "README.md", ROOT / "Dockerfile"]
    for folder in FOLDERS:
        found += [
            path
            for path in sorted((ROOT / folder).rglob("*"))
            if path.suffix in SUFFIXES or path.name.startswith("Dockerfile")
        ]
    return found


def commands(text: str) -> Iterator[list[str]]:
    """Yield the requirements of each `pip install` command of a text, with their quotes, without options."""
    for command in COMMAND.finditer(text):
        yield [one for one in REQUIREMENT.findall(command[1]) if not one.startswith("-")]


def mistakes(text: str) -> list[str]:
    """Return what is wrong with the install commands of a text."""
    found = []
    for requirements in commands(text):
        for requirement in requirements:
            bare = requirement.strip("'\"")
            name, _, extras = re.split(r"[=<>~]", bare)[0].partition("[")
            if name == "warren":
                found.append(f"{requirement}: the package on the index is warrenmq")
            if name != PROJECT["name"]:
                continue
            if "[" in requirement and requirement == bare:
                found.append(f"{requirement}: a shell such as zsh expands [...] without quotes")
            named = set(filter(None, extras.removesuffix("]").split(",")))
            found += [
                f"{requirement}: there is no extra {extra!r}"
                for extra in sorted(named - EXTRAS - {"..."})
                if "{" not in extra
            ]
    return found


def test_each_install_command_names_the_package_and_its_extras() -> None:
    texts = {path: path.read_text() for path in files()}
    found = [
        f"{path.relative_to(ROOT)}: {mistake}" for path, text in texts.items() for mistake in mistakes(text)
    ]
    assert not found, "\n".join(found)
    named = [
        one for text in texts.values() for command in commands(text) for one in command if "warrenmq" in one
    ]
    assert len(named) > 20


def test_each_extra_for_users_is_in_the_table_of_the_platforms() -> None:
    table = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/platforms.md").read_text(), re.MULTILINE))
    contributors = {"tests", "lint", "types", "docs", "release", "dev"}
    assert EXTRAS - contributors <= table


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("RUN pip install --no-cache-dir warren\n", "warren: the package on the index is warrenmq"),
        (
            "run `pip install warrenmq[redis]`",
            "warrenmq[redis]: a shell such as zsh expands [...] without quotes",
        ),
        ("(pip install 'warrenmq[redos]' django)", "'warrenmq[redos]': there is no extra 'redos'"),
    ],
)
def test_a_wrong_command_is_found(text: str, mistake: str) -> None:
    assert mistakes(text) == [mistake]


@pytest.mark.parametrize(
    "text",
    [
        "pip install warrenmq",
        "pip install 'warrenmq[redis,sql]==0.2.0' uvicorn",
        'pip install "warrenmq[test]"',
    ],
)
def test_a_right_command_passes(text: str) -> None:
    assert mistakes(text) == []
