"""From the command line and the environment to the configuration: a flag, else a variable, else a file, else the default."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from warren.broker.configuration.rabbitmq_conf import read_rabbitmq_conf
from warren.broker.configuration.setting_keys import KEYS, PREFIX, Key
from warren.broker.configuration.setting_sources import DEFAULT, RunConfig, Settings, assemble, given
from warren.broker.configuration.toml_file import read_toml
from warren.core.argument_parser import CommandParser

FILES: Final = {
    "config": "a TOML file with settings, each by its name (see docs/configuration.md)",
    "rabbitmq_conf": "a rabbitmq.conf: what it says of listeners, users, TLS and limits holds, unless --config says other",
}


def parser() -> CommandParser:
    arguments = CommandParser("warren broker", "Run an AMQP 0-9-1 broker in the foreground.")
    arguments.epilog = (
        f"Each setting may also stand in the environment ({PREFIX}PORT=5673) or in a file (--config)."
    )
    for name, text in FILES.items():
        arguments.add_argument("--" + name.replace("_", "-"), metavar="FILE", help=text)
    arguments.add_argument(
        "--print-config",
        action="store_true",
        help="print the settings as TOML, each with where it comes from, and end",
    )
    for key in KEYS.values():
        if not key.secret:
            _add(arguments, key)
    return arguments


def _add(arguments: CommandParser, key: Key) -> None:
    text = key.help.replace("`", "").replace("%", "%%")
    text += "" if key.default in (None, "", ()) else f" (default: {_shown(key.default)})"
    if key.hint is bool:
        arguments.add_argument(key.flag, nargs="?", const="true", metavar="BOOL", help=text)
    else:
        arguments.add_argument(key.flag, metavar=_metavar(key), help=text)


def _metavar(key: Key) -> str:
    if "Path" in str(key.hint):
        return "DIR" if key.name.endswith("dir") else "FILE"
    return "N" if key.hint in (int, float) else "VALUE"


def load(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[RunConfig, bool]:
    """What the broker is told, and whether that should only be printed.

    :raises UsageError: for whatever is wrong; one line with where it was said.
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
        if name in KEYS and variable.startswith(PREFIX):
            settings[name] = given(name, value, variable)
        elif variable.startswith(PREFIX) and name not in FILES:
            # No error: whoever starts processes may set variables for its own ends, as Kubernetes does for its services.
            unknown.append(variable)
    ignored["environment"] = tuple(unknown)
    for name, key in KEYS.items():
        said = options.get(name)
        if said is not None:
            settings[name] = given(name, said, key.flag)
    return assemble(settings, ignored), options["print_config"]


def format_config(config: RunConfig) -> str:
    """The settings as a TOML file that means the same, each with where it comes from; secrets are not shown."""
    lines = []
    values: dict[str, Any] = {**vars(config.broker), **vars(config.log)}
    values.update(("tls_" + name, value) for name, value in vars(config.broker.tls).items())
    for name, key in KEYS.items():
        value = values[name]
        origin = config.origins.get(name, DEFAULT)
        if value is None:
            lines.append(f"# {name} is not set")
        elif key.secret:
            lines.append(f"# {name} is not shown: {origin}")
        else:
            lines.append(f"{name} = {_toml(value)}  # {origin}")
    return "\n".join(lines)


def _toml(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(each) for each in value) + "]"
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    return json.dumps(str(value), ensure_ascii=False)


def _shown(value: object) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value)
