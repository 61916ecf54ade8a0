"""Checks of options: one of a few words, a number in its range, or an object with certain methods."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any, Final, get_args

from warren.sdk.errors import ConfigError

SHOWN: Final = 40
"""Characters of a refused value that an error contains at most."""
LONGEST_INTEGER: Final = 128
"""Bits of a refused number that an error contains in full; Python writes none of more than some thousand digits."""


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


def check_whole_number(name: str, value: object, lowest: int = 1, highest: int | None = None) -> None:
    """Check that an option is a whole number in its range.

    :param name: name of the option.
    :param lowest: smallest number.
    :param highest: largest number; None for no limit.
    :raises ConfigError: if it is a bool, a float, even a whole one, or another object; or is out of its range.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"{name} must be a whole number, not {shown_value(value)}")
    if highest is not None and not lowest <= value <= highest:
        raise ConfigError(f"{name} must be from {lowest} to {highest}, not {shown_value(value)}")
    if value < lowest:
        raise ConfigError(f"{name} must be at least {lowest}, not {shown_value(value)}")


def check_number(name: str, value: object, lowest: float = 0.0, *, above: bool = False) -> None:
    """Check that an option is a finite number in its range.

    :param name: name of the option.
    :param lowest: smallest number.
    :param above: refuse the smallest number too.
    :raises ConfigError: if it is a bool, NaN, infinite or another object; or is out of its range.
    """
    # An integer may be too large for isfinite.
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not (isinstance(value, int) or isfinite(value))
    ):
        raise ConfigError(f"{name} must be a finite number, not {shown_value(value)}")
    if value < lowest or (above and value == lowest):
        raise ConfigError(
            f"{name} must be {'above' if above else 'at least'} {lowest:g}, not {shown_value(value)}"
        )


def shown_value(value: object) -> str:
    """Return a value as an error text names it: short, in one line."""
    if not isinstance(value, bool | int | float | str | None):
        return f"a {type(value).__name__}"
    if isinstance(value, int) and value.bit_length() > LONGEST_INTEGER:
        return f"a number of {value.bit_length()} bits"
    shown = repr(value)
    return shown if len(shown) <= SHOWN else f"{shown[: SHOWN - 3]}..."
