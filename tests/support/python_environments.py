"""Python environments without Warren, or with another version of it."""

from __future__ import annotations

import shlex
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

PARTS = ("core", "wire", "cli", "sdk", "patterns", "broker", "pipeline")


def python_elsewhere(folder: Path, version: str | None, *lacks: str) -> Path:
    """Create an interpreter with the packages that are installed here, except Warren.

    :param folder: for it, does not exist yet
    :param version: of the Warren that it has; None: it has none
    :param lacks: packages that it has not either
    """
    site = folder / "site"
    site.mkdir(parents=True)
    here = Path(sysconfig.get_path("purelib"))
    for package in here.iterdir():
        if package.name in lacks:
            continue
        # An editable install is a hook that brings Warren back.
        if package.name.startswith(("warren", "pyspark_warren", "__editable__")) or package.suffix == ".pth":
            continue
        (site / package.name).symlink_to(package)
    paths = [site]
    if version is not None:
        information = site / f"warrenmq-{version}.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: warrenmq\nVersion: {version}\n")
        for root in warren_roots():
            if root == here:
                # Installed beside what may have to be lacking, and perhaps compiled, which is a library more.
                for part in (*here.glob("warren*"), here / "pyspark_warren"):
                    if part.suffix != ".dist-info":
                        (site / part.name).symlink_to(part)
            else:
                paths.append(root)
    python = folder / "python"
    path = ":".join(map(str, paths))
    # Without `site` it leaves out the packages of the virtual environment that it belongs to.
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH={shlex.quote(path)} exec {shlex.quote(sys.executable)} -S "$@"\n'
    )
    python.chmod(0o755)
    return python


def warren_roots() -> list[Path]:
    """Return the folders of Warren's parts: one if it is installed, several in a checkout."""
    parts = (find_spec(f"warren.{part}") for part in PARTS)
    # ROOT/warren/PART/__init__.py
    return list(dict.fromkeys(Path(part.origin).parents[2] for part in parts if part and part.origin))
