"""`python -m tests.ci.changed`: print the tests of the packages that a change touches, as arguments of pytest.

The change is what differs from a commit, with files that git does not track yet. A change of a package runs the tests of the
package and of the packages whose behaviour its own tests show. Nothing is printed if no test has to do with the change.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import Final

EVERYTHING: Final = "tests"

TESTS: Final = {
    "wire": ("tests/unit", "tests/broker", "tests/sdk"),
    "core": ("tests/unit", "tests/broker", "tests/sdk", "tests/cli", "tests/patterns"),
    "broker": ("tests/unit", "tests/broker", "tests/faults", "tests/testing"),
    "sdk": ("tests/sdk", "tests/testing", "tests/patterns", "tests/cli"),
    "patterns": ("tests/patterns", "tests/demo"),
    "pipeline": ("tests/spark",),
    "cli": ("tests/cli", "tests/broker", "tests/patterns"),
    "examples": ("tests/sdk", "tests/patterns", "tests/cli", "tests/spark", "tests/demo", "tests/tutorial"),
    "docs": ("tests/tutorial",),
    "benchmarks": (),
    "mkdocs.yml": (),
}
"""Folders of tests, by the first part of a changed path. Tests of the house run with each of them."""

HOUSE: Final = "tests/house"


def tests_of(path: str) -> tuple[str, ...]:
    """Return the tests to run when a file has changed: folders and files.

    :param path: of the file, from the root of the repository
    """
    first, *rest = PurePath(path).parts
    if first != "tests":
        # Any other file may change everything: the build's settings, the Makefile, the lock.
        is_text = not rest and path.endswith(".md")
        return (HOUSE, *TESTS.get(first, () if is_text else (EVERYTHING,)))
    if len(rest) < 2 or rest[0] == "support":
        return (EVERYTHING,)
    name = rest[-1]
    return (HOUSE, path if name.startswith("test_") and name.endswith(".py") else f"tests/{rest[0]}")


def selection(paths: Iterable[str], root: Path) -> list[str]:
    """Return the tests of all changed files that exist, each once, without files whose folder is among them."""
    chosen = {test for path in paths for test in tests_of(path) if (root / test).exists()}
    return sorted(
        test for test in chosen if not any(str(parent) in chosen for parent in PurePath(test).parents)
    )


def changed_files(base: str) -> list[str]:
    """Return the files that differ from a commit, and those that git does not track yet."""
    commands = (["git", "diff", "--name-only", base], ["git", "ls-files", "--others", "--exclude-standard"])
    return [
        line
        for command in commands
        for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.ci.changed", description=__doc__)
    parser.add_argument("--base", default="HEAD", metavar="COMMIT", help="default: %(default)s")
    print(*selection(changed_files(parser.parse_args().base), Path.cwd()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
