"""constraints.txt, the lock of the environments of development, against what pyproject.toml asks for."""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


def test_the_lock_has_a_version_within_the_range_of_each_requirement() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = [
        project["build-system"]["requires"],
        project["project"]["dependencies"],
        *project["project"]["optional-dependencies"].values(),
        *project["dependency-groups"].values(),
    ]
    locked: dict[str, list[Requirement]] = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if not line.startswith("#"):
            requirement = Requirement(line)
            locked.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    outside = []
    for wanted in (Requirement(text) for group in groups for text in group):
        if wanted.name == project["project"]["name"]:
            continue
        versions = [
            specifier.version
            for requirement in locked.get(canonicalize_name(wanted.name), [])
            for specifier in requirement.specifier
        ]
        if not versions or not all(wanted.specifier.contains(version) for version in versions):
            outside.append(f"{wanted}: {versions or 'missing'}")
    assert outside == [], "make lock"
