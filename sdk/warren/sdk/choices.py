"""Checks of options: one of a few words, or an object with certain methods."""

from __future__ import annotations

from collections.abc import Sequence
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


def check_methods(name: str, value: object, methods: Sequence[str], what: str, example: str) -> None:
    """Check that an argument is an object, and no class, with the methods of a protocol; or None.

    :param name: name of the argument, or of the function that takes it.
    :param what: name of such an object, with its article.
    :param example: what to write.
    :raises ConfigError: if it is anything else.
    """
    if value is None:
        return
    if isinstance(value, type):
        raise ConfigError(f"{name} takes {what}, not the class {value.__name__}: write {value.__name__}(...)")
    if not all(hasattr(value, method) for method in methods):
        shown = repr(value) if isinstance(value, bool | int | float) else type(value).__name__
        raise ConfigError(f"{name} takes {what}, not {shown}: write {example}")
