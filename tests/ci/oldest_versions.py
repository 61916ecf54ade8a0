"""`python -m tests.ci.oldest_versions EXTRA...`: print the oldest allowed version of each requirement of these extras.

`make test-oldest` installs them: a version that does not work has no place in pyproject.toml.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement


def oldest(requirements: Iterable[str]) -> list[str]:
    """Return each requirement with its lower bound as the only version, without its own extras."""
    found = []
    for requirement in map(Requirement, requirements):
        (bound,) = (each.version for each in requirement.specifier if each.operator == ">=")
        found.append(f"{requirement.name}=={bound}")
    return found


def main(extras: Iterable[str]) -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    optional = project["project"]["optional-dependencies"]
    print(*(version for extra in extras for version in oldest(optional[extra])))


if __name__ == "__main__":
    main(sys.argv[1:])
