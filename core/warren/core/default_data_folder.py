"""Default data folder of a broker: one for each user, where the operating system keeps the data of applications."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path


def default_data_folder(
    environment: Mapping[str, str] = os.environ, platform: str = sys.platform, home: Path | None = None
) -> Path:
    """Return the data folder of a broker that is started without the name of one.

    It is `warren/broker` in `$XDG_DATA_HOME` if that is an absolute path (XDG Base Directory Specification); otherwise in
    `~/.local/share`, on macOS in `~/Library/Application Support`, on Windows in `%LOCALAPPDATA%`. It may not exist yet.

    :param environment: environment variables by name.
    :param platform: name of the operating system, as in `sys.platform`.
    :param home: the user's home folder; None for that of this process.
    :raises RuntimeError: if the home folder of the user cannot be determined.
    """
    base = Path(environment.get("XDG_DATA_HOME", ""))
    if not base.is_absolute():
        if platform == "win32" and environment.get("LOCALAPPDATA"):
            base = Path(environment["LOCALAPPDATA"])
        else:
            base = (home or Path.home()) / _BASES.get(platform, ".local/share")
    return base / "warren" / "broker"


_BASES = {"darwin": "Library/Application Support", "win32": "AppData/Local"}


__all__ = ["default_data_folder"]
