"""Loader of the configuration from defaults, files, environment variables, flags: each overrides those before it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from warren.broker.configuration.rabbitmq_conf import read_rabbitmq_conf
from warren.broker.configuration.setting_keys import GROUPS, PREFIX, SETTINGS, SettingKey
from warren.broker.configuration.setting_sources import (
    DEFAULT,
    RunConfig,
    Settings,
    build_config,
    parse_setting,
)
from warren.broker.configuration.toml_file import read_toml
from warren.core.argument_parser import CommandParser

FILES: Final = {
    "config": "TOML file with settings by name (see docs/configuration.md)",
    "rabbitmq_conf": "rabbitmq.conf with listeners, users, TLS and limits; --config overrides it",
}


def parser() -> CommandParser:
    """Return the argument parser of `warren broker`."""
    arguments = CommandParser("warren broker", "Run an AMQP 0-9-1 broker in the foreground.")
    arguments.epilog = (
        f"Each setting may also be set in the environment ({PREFIX}PORT=5673) or in a file (--config)."
    )
    for name, text in FILES.items():
        arguments.add_argument("--" + name.replace("_", "-"), metavar="FILE", help=text)
    arguments.add_argument(
        "--print-config",
        action="store_true",
        help="print the settings as TOML, each with its origin, and exit",
    )
    for key in SETTINGS.values():
        if not key.secret:
            _add(arguments, key)
    return arguments


def _add(arguments: CommandParser, key: SettingKey) -> None:
    text = key.help.replace("`", "").replace("%", "%%")
    text += "" if key.default in (None, "", ()) else f" (default: {_format_default(key.default)})"
    if key.hint is bool:
        arguments.add_argument(key.flag, nargs="?", const="true", metavar="BOOL", help=text)
    else:
        arguments.add_argument(key.flag, metavar=_metavar(key), help=text)


def _metavar(key: SettingKey) -> str:
    if "Path" in str(key.hint):
        return "DIR" if key.name.endswith("dir") else "FILE"
    return "N" if key.hint in (int, float) else "VALUE"


def load_config(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[RunConfig, bool]:
    """Load the configuration from flags, environment variables and files.

    Returns the configuration, and True if `--print-config` requests to print it instead of running the broker.

    :param arguments: command line after `warren broker`
    :param environment: environment variables by name
    :raises UsageError: for an invalid setting, with its origin (flag, variable, or file with line)
    """
    options = vars(parser().parse_args(arguments))
    settings: Settings = {}
    ignored: dict[str, tuple[str, ...]] = {}
    rabbitmq_conf = options["rabbitmq_conf"] or environment.get(PREFIX + "RABBITMQ_CONF")
    if rabbitmq_conf:
        read, without_meaning = read_rabbitmq_conf(Path(rabbitmq_conf), environment)
        settings.update(read)
        ignored[rabbitmq_conf] = without_meaning
    config = options["config"] or environment.get(PREFIX + "CONFIG")
    if config:
        settings.update(read_toml(Path(config)))
    unknown = []
    for variable, value in environment.items():
        name = variable.removeprefix(PREFIX).lower()
        if name in SETTINGS and variable.startswith(PREFIX):
            settings[name] = parse_setting(name, value, variable)
        elif variable.startswith(PREFIX) and name not in FILES:
            # Not an error: Kubernetes, for example, sets such variables for a service named warren-broker.
            unknown.append(variable)
    ignored["environment"] = tuple(unknown)
    for name, key in SETTINGS.items():
        text = options.get(name)
        if text is not None:
            settings[name] = parse_setting(name, text, key.flag)
    return build_config(settings, ignored, environment), options["print_config"]


def format_config(config: RunConfig) -> str:
    """Return the settings as an equivalent TOML file with the origin of each setting, but without secrets."""
    lines = []
    values: dict[str, Any] = {**vars(config.broker), **vars(config.storage), **vars(config.log)}
    for group in GROUPS:
        values.update((f"{group}_{name}", each) for name, each in vars(getattr(config.broker, group)).items())
    for name, key in SETTINGS.items():
        value = values[name]
        origin = config.origins.get(name, DEFAULT)
        if value is None:
            lines.append(f"# {name} is not set")
        elif key.secret:
            lines.append(f"# {name} is secret: {origin}")
        else:
            lines.append(f"{name} = {_toml(value)}  # {origin}")
    return "\n".join(lines)


def _toml(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(each) for each in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml(name)} = {_toml(each)}" for name, each in value.items()) + "}"
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    return json.dumps(str(value), ensure_ascii=False)


def _format_default(value: object) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value)
