"""Check of options that are one of a few words."""

from __future__ import annotations

from typing import Any, get_args

from warren.sdk.errors import ConfigError


def check_choice(name: str, value: object, choices: Any, hint: str = "") -> None:
    """Check that an option has one of the values that it may have.

    :param name: name of the option.
    :param choices: the `Literal` that lists the values.
    :param hint: further remedy, for the end of the error's text.
    :raises ConfigError: if the value is none of them.
    """
    words = get_args(choices)
    if value not in words:
        raise ConfigError(f"{name} is {' or '.join(map(repr, words))}, not {value!r}{hint}")
