"""The configuration file: TOML, each setting by its name; those of TLS may stand in a table `[tls]`, users in `[users]`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from warren.broker.configuration.setting_keys import TLS
from warren.broker.configuration.setting_sources import Settings, given
from warren.core.errors import UsageError


def read_toml(path: Path) -> Settings:
    """
    :raises UsageError: if the file cannot be read, is no TOML, or has a setting that is none; with the line.
    """
    try:
        text = path.read_text()
        table = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: {error}") from None
    lines = _lines(text)
    settings = {}
    for name, value in table.items():
        if name == "tls" and isinstance(value, dict):
            for part, inner in value.items():
                origin = f"{path}, line {lines.get((name, part), lines.get(('', name), 1))}"
                settings[TLS + part] = given(TLS + part, inner, origin)
        else:
            origin = f"{path}, line {lines.get(('', name), lines.get((name, ''), 1))}"
            settings[name] = given(name, value, origin)
    return settings


def _lines(text: str) -> dict[tuple[str, str], int]:
    """The line of each key of each table, and of each table's head (with an empty key)."""
    found: dict[tuple[str, str], int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if head := re.match(r"\s*\[+\s*([^\[\]]+?)\s*\]", line):
            table = head[1].strip("\"'")
            found.setdefault((table, ""), number)
        elif key := re.match(r"""\s*["']?([\w-]+)["']?\s*[.=]""", line):
            found.setdefault((table, key[1]), number)
    return found
