"""Options whose value is a duration: a number of seconds, or a text such as `250ms`, `5s` or `1h30m`."""

from __future__ import annotations

import typer

from warren.core.durations import parse_seconds


def positive_seconds(value: str | float) -> float:
    """Parse the value of an option that is a duration above zero; return it in seconds.

    :param value: the text, or the default value of the option
    :raises BadParameter: if it is not a duration, or zero
    """
    try:
        seconds = parse_seconds(str(value))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if not seconds:
        raise typer.BadParameter("the duration must be longer than zero")
    return seconds
