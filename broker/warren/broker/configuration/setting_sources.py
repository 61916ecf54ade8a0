"""Settings as they are given: each with where it was said, so that an error can tell; and what they come to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from warren.broker.configuration.config import BrokerConfig
from warren.broker.configuration.setting_keys import KEYS, TLS, LogConfig
from warren.broker.connection.tls import TlsConfig
from warren.core.errors import UsageError

DEFAULT: Final = "default"


@dataclass(frozen=True)
class Given:
    """A value, and where it comes from: a flag, a variable, or a file with its line."""

    value: object
    origin: str


Settings = dict[str, Given]
"""By the key's name."""


@dataclass(frozen=True)
class RunConfig:
    """All that `warren broker` is told.

    :param origins: where each setting comes from, by name; the others have their defaults.
    :param ignored: names of settings without meaning for Warren, by their source: a file, or "environment".
    """

    broker: BrokerConfig
    log: LogConfig
    origins: Mapping[str, str]
    ignored: Mapping[str, tuple[str, ...]]


def given(name: str, value: object, origin: str) -> Given:
    """A value for a setting, parsed.

    :raises UsageError: if there is no such setting, or the value is not what it has to be.
    """
    key = KEYS.get(name)
    if key is None:
        raise UsageError(f"{origin}: {unknown(name)}")
    try:
        return Given(key.parse(value), origin)
    except ValueError as error:
        raise UsageError(f"{origin}: {name}: {error}") from None


def unknown(name: str) -> str:
    near = get_close_matches(name, KEYS, 1)
    return f"no setting {name!r}" + (
        f"; did you mean {near[0]!r}?" if near else "; see docs/configuration.md"
    )


def assemble(settings: Settings, ignored: Mapping[str, tuple[str, ...]]) -> RunConfig:
    """
    :raises UsageError: if settings are out of bounds, or do not go together; with where the wrong one was said.
    """
    values: dict[str, Any] = {name: key.default for name, key in KEYS.items()}
    values.update((name, each.value) for name, each in settings.items())
    tls = {name.removeprefix(TLS): values.pop(name) for name in list(values) if name.startswith(TLS)}
    log = LogConfig(log_level=values.pop("log_level"), log_json=values.pop("log_json"))
    try:
        broker = BrokerConfig(tls=TlsConfig(**tls), **values)
    except ValueError as error:
        named = next((name for name in re.findall(r"[a-z_]+", str(error)) if name in settings), None)
        raise UsageError(f"{settings[named].origin}: {error}" if named else str(error)) from None
    return RunConfig(broker, log, {name: each.origin for name, each in settings.items()}, ignored)
