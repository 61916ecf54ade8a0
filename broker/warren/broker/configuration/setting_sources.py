"""Settings with the origin of each value, and construction of the configuration from them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from warren.broker.configuration.config import BrokerConfig
from warren.broker.configuration.setting_keys import GROUPS, SETTINGS, LogConfig, StorageConfig
from warren.core.default_data_folder import default_data_folder
from warren.core.errors import UsageError

DEFAULT: Final = "default"
DEFAULT_MANAGEMENT_PORT: Final = 15672
"""Port of the HTTP API if neither it nor an address for AMQP is set: a second broker on the machine has to choose both."""
DEFAULT_PROMETHEUS_PORT: Final = 15692
"""Port of the Prometheus endpoint under the same condition."""


@dataclass(frozen=True)
class SettingValue:
    """Value of a setting, and its origin for error texts: a flag, an environment variable, or a file with its line."""

    value: object
    origin: str


Settings = dict[str, SettingValue]
"""Settings read from one or more sources: value and origin by the name of the setting."""


@dataclass(frozen=True)
class RunConfig:
    """Configuration of `warren broker`: the broker's, the storage's and the log's settings, with their origins.

    :param origins: origin of each value that is no default, by the name of the setting.
    :param ignored: ignored settings by their source: under the path of rabbitmq.conf, texts such as `KEY (line 3)` for
        keys of RabbitMQ without an equivalent; under "environment", variables that name no setting.
    """

    broker: BrokerConfig
    storage: StorageConfig
    log: LogConfig
    origins: Mapping[str, str]
    ignored: Mapping[str, tuple[str, ...]]


def parse_setting(name: str, value: object, origin: str) -> SettingValue:
    """Parse the value of a setting, and return it with its origin.

    :param name: name of the setting, such as `data_dir`
    :param value: text from a flag or variable, or a value of the TOML file
    :param origin: flag, variable, or file with its line, for error texts
    :raises UsageError: if there is no such setting, or the value is invalid
    """
    key = SETTINGS.get(name)
    if key is None:
        raise UsageError(f"{origin}: {unknown_setting_text(name)}")
    try:
        return SettingValue(key.parse(value), origin)
    except ValueError as error:
        raise UsageError(f"{origin}: {name}: {error}") from None


def unknown_setting_text(name: str) -> str:
    """Return an error text for an unknown setting, which proposes the most similar name of a setting, if any."""
    near = get_close_matches(name, SETTINGS, 1)
    return f"no setting {name!r}" + (
        f"; did you mean {near[0]!r}?" if near else "; `warren broker --print-config` lists all settings"
    )


def build_config(
    settings: Settings, ignored: Mapping[str, tuple[str, ...]], environment: Mapping[str, str]
) -> RunConfig:
    """Build the configuration from settings; those that are not given get their defaults.

    :param environment: environment variables by name, for the default data folder
    :param ignored: texts that name ignored settings, by the file they are in, or "environment" (see `RunConfig`)
    :raises UsageError: with the origin of a setting that is out of range or conflicts with another
    """
    values: dict[str, Any] = {name: key.default for name, key in SETTINGS.items()}
    values.update((name, each.value) for name, each in settings.items())
    storage = StorageConfig(in_memory=values.pop("in_memory"))
    values["data_dir"] = _data_dir(settings, storage, environment)
    if not {"port", "listeners"} & settings.keys():
        ports = {"management_port": DEFAULT_MANAGEMENT_PORT, "prometheus_port": DEFAULT_PROMETHEUS_PORT}
        values.update((name, port) for name, port in ports.items() if name not in settings)
    log = LogConfig(log_level=values.pop("log_level"), log_json=values.pop("log_json"))
    try:
        for group, kind in GROUPS.items():
            prefix = f"{group}_"
            names = [name for name in values if name.startswith(prefix)]
            values[group] = kind(**{name.removeprefix(prefix): values.pop(name) for name in names})
        broker = BrokerConfig(**values)
    except ValueError as error:
        named = next((name for name in re.findall(r"[a-z_]+", str(error)) if name in settings), None)
        raise UsageError(f"{settings[named].origin}: {error}" if named else str(error)) from None
    return RunConfig(broker, storage, log, {name: each.origin for name, each in settings.items()}, ignored)


def _data_dir(settings: Settings, storage: StorageConfig, environment: Mapping[str, str]) -> Path | None:
    """Return the data folder: the one that is set, None if everything is kept in memory, otherwise the default one.

    :param environment: environment variables by name
    :raises UsageError: if both a data folder and memory are set, or there is no default folder
    """
    given = settings.get("data_dir")
    if storage.in_memory:
        if given is not None:
            raise UsageError(
                f"in_memory ({settings['in_memory'].origin}) and data_dir ({given.origin}) exclude each other: set one"
            )
        return None
    if given is not None:
        if given.value is None:
            raise UsageError(
                f"{given.origin}: data_dir is none; to keep everything in memory, set in_memory (--in-memory)"
            )
        assert isinstance(given.value, Path)
        return given.value
    try:
        return default_data_folder(environment)
    except RuntimeError:
        raise UsageError(
            "this user has no home folder for the broker's data: choose a folder with --data-dir, or --in-memory"
        ) from None
