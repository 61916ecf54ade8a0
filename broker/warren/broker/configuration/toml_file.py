"""Reader of the TOML configuration file. Settings of one subject may be in a table, such as `[tls]` or `[oauth2]`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from warren.broker.configuration.setting_keys import GROUPS
from warren.broker.configuration.setting_sources import Settings, parse_setting
from warren.core.errors import UsageError


def read_toml(path: Path) -> Settings:
    """Return the settings in a TOML file, by name.

    :raises UsageError: if the file cannot be read or is not TOML, or with the line of an unknown or invalid setting
    """
    try:
        text = path.read_text(encoding="utf-8")
        table = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: {error}") from None
    lines = _lines(text)
    settings = {}
    for name, value in table.items():
        if name in GROUPS and isinstance(value, dict):
            for part, inner in value.items():
                origin = f"{path}, line {lines.get((name, part), lines.get(('', name), 1))}"
                settings[f"{name}_{part}"] = parse_setting(f"{name}_{part}", inner, origin)
        else:
            origin = f"{path}, line {lines.get(('', name), lines.get((name, ''), 1))}"
            settings[name] = parse_setting(name, value, origin)
    return settings


def _lines(text: str) -> dict[tuple[str, str], int]:
    """Return the number of the line that sets each (table, key) in a TOML text.

    Keys outside of tables have an empty table name. The line of a table's header has an empty key.
    """
    found: dict[tuple[str, str], int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if head := re.match(r"\s*\[+\s*([^\[\]]+?)\s*\]", line):
            table = head[1].strip("\"'")
            found.setdefault((table, ""), number)
        elif key := re.match(r"""\s*["']?([\w-]+)["']?\s*[.=]""", line):
            found.setdefault((table, key[1]), number)
    return found
