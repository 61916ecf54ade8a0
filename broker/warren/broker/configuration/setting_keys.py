"""Table of all settings of `warren broker`, with help text, default and parser.

It is derived from the fields of `BrokerConfig`, the configurations in `GROUPS`, `StorageConfig` and `LogConfig`, and the
help texts from their docstrings.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from warren.broker.access.access_service.access_service_config import AccessServiceConfig
from warren.broker.access.oauth2.oauth2_config import OAuth2Config
from warren.broker.configuration.config import BrokerConfig
from warren.broker.configuration.sizes import parse_size
from warren.broker.connection.tls import TlsConfig


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """Log of `warren broker` on standard error.

    :param log_level: lowest level that is logged: `debug`, `info`, `warning` or `error`.
    :param log_json: log one JSON object for each line instead of text.
    """

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_json: bool = False


@dataclass(frozen=True, kw_only=True)
class StorageConfig:
    """Storage of `warren broker`, apart from its data folder.

    :param in_memory: keep everything in memory, without a data folder: confirmed messages are lost when the broker stops.
    """

    in_memory: bool = False


@dataclass(frozen=True)
class SettingKey:
    """Description of one setting: name, help text, type, parser and default.

    :param hint: type annotation of the setting's field in its dataclass
    :param parse: function that converts a value of a file or a command line; raises `ValueError` with the reason
    :param default: default in `warren broker`
    :param secret: True if the value is never printed and cannot be set by a flag
    """

    name: str
    help: str
    hint: object
    parse: Callable[[object], object]
    default: object
    secret: bool

    @property
    def flag(self) -> str:
        """Name of the command-line flag that sets it, such as `--max-connections`."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """Name of the environment variable that sets it, such as `WARREN_BROKER_MAX_CONNECTIONS`."""
        return PREFIX + self.name.upper()


PREFIX: Final = "WARREN_BROKER_"
"""Prefix of the environment variables of all settings."""
GROUPS: Final[dict[str, type[Any]]] = {
    "tls": TlsConfig,
    "oauth2": OAuth2Config,
    "auth_http": AccessServiceConfig,
}
"""Fields of `BrokerConfig` that are configurations themselves; their settings have the field's name as a prefix."""
COMMAND_DEFAULTS: Final[dict[str, object]] = {"port": 5672, "memory_alarm": True, "stall_threshold": 100}
"""Defaults of `warren broker` that differ from those of `BrokerConfig`, by the name of the setting."""
SIZES: Final = ("max_message_size",)
SECRETS: Final = ("users", "tls_key_password")
TRUE: Final = ("true", "yes", "on", "1")
FALSE: Final = ("false", "no", "off", "0")


def _setting_keys() -> dict[str, SettingKey]:
    found = {}
    groups = [(kind, f"{name}_") for name, kind in GROUPS.items()]
    for kind, prefix in ((BrokerConfig, ""), (StorageConfig, ""), *groups, (LogConfig, "")):
        hints = get_type_hints(kind)
        help_texts = _parameters(inspect.getdoc(kind) or "")
        for each in fields(kind):
            if each.name in GROUPS and kind is BrokerConfig:
                continue
            name = prefix + each.name
            default = each.default_factory() if each.default_factory is not MISSING else each.default
            default = COMMAND_DEFAULTS.get(name, default)
            hint = hints[each.name]
            parse = _size if name in SIZES else _parser(hint)
            found[name] = SettingKey(
                name, help_texts.get(each.name, ""), hint, parse, default, name in SECRETS
            )
    return found


def _parameters(documentation: str) -> dict[str, str]:
    """Return the descriptions of the `:param name:` lines in a docstring, by name."""
    found = re.findall(r":param (\w+):\s*(.*?)(?=\n\s*:param |\Z)", documentation, re.DOTALL)
    return {name: " ".join(text.split()) for name, text in found}


def _parser(hint: object) -> Callable[[object], object]:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        rest = [each for each in arguments if each is not type(None)]
        if len(rest) == 1:
            return _or_none(_parser(rest[0]))
        return _number_or_text
    if origin is Literal:
        return _one_of([str(each) for each in arguments])
    if origin is tuple:
        return _texts
    if origin in (Mapping, dict):
        return _pairs
    simple: dict[object, Callable[[object], object]] = {
        int: _integer,
        float: _number,
        bool: _flag,
        str: _text,
        Path: _path,
    }
    return simple[hint]


def _or_none(parse: Callable[[object], object]) -> Callable[[object], object]:
    return lambda value: None if value == "none" else parse(value)


def _one_of(choices: list[str]) -> Callable[[object], object]:
    def parse(value: object) -> object:
        if value not in choices:
            raise ValueError(f"{value!r} is not one of {', '.join(choices)}")
        return value

    return parse


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a text")
    return value


def _path(value: object) -> Path:
    """Return a path, with `~` expanded.

    :raises ValueError: if the value is no text, or empty, which would be the working folder.
    """
    text = _text(value)
    if not text:
        raise ValueError("it is empty; write a path")
    return Path(text).expanduser()


def _integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{value!r} is not an integer")
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"{value!r} is not an integer") from None


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} is not a number")
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"{value!r} is not a number") from None


def _flag(value: object) -> bool:
    word = str(value).lower()
    if word not in TRUE + FALSE:
        raise ValueError(f"{value!r} is neither true nor false")
    return word in TRUE


def _size(value: object) -> int:
    return parse_size(value) if isinstance(value, str) else _integer(value)


def _number_or_text(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} is neither a number nor text")
    return value


def _texts(value: object) -> tuple[str, ...]:
    """Return the items of a list, or of a text whose items are separated by commas, as a tuple of texts.

    :raises ValueError: if the value is neither list nor text.
    """
    if isinstance(value, str):
        value = [word.strip() for word in value.split(",")] if value.strip() else []
    if not isinstance(value, list):
        raise ValueError(f"{value!r} is not a list")
    return tuple(str(word) for word in value)


def _pairs(value: object) -> dict[str, str]:
    """Return the values by name of a TOML table, or of a text `name:value,name:value`.

    :raises ValueError: if it is neither. The error text omits the values, which may be passwords.
    """
    if isinstance(value, str):
        value = dict(word.partition(":")[::2] for word in value.split(",")) if value else {}
    if not isinstance(value, dict) or not all(isinstance(each, str) and each for each in value.values()):
        raise ValueError("it must be a table of texts, or name:password pairs separated by commas")
    return {str(name).strip(): each for name, each in value.items()}


SETTINGS: Final = _setting_keys()

__all__ = ["GROUPS", "PREFIX", "SETTINGS", "LogConfig", "SettingKey", "StorageConfig"]
