"""Common parts of the commands that use typer: options, and errors as one line with an exit status."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.main import get_command

from warren.core.command_output import write_lines
from warren.core.errors import ExitStatus, UsageError

Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="amqp://user:password@host:port/vhost (default: $AMQP_URL)"),
]
"""Option `--url` of a command: the AMQP URL of the broker."""

Json = Annotated[bool, typer.Option("--json", help="print JSON")]
"""Option `--json` of a command: print JSON instead of text for people."""


def command_group(description: str) -> typer.Typer:
    """Create a typer application without typer's own completion and tracebacks.

    :param description: first paragraph of the help
    """
    return typer.Typer(
        help=description,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )


def run_group(app: typer.Typer, name: str, words: Sequence[str]) -> int:
    """Run `warren NAME WORDS` and return the exit status.

    :raises UsageError: for wrong arguments
    """
    command = get_command(app)
    try:
        status = command.main(args=list(words), prog_name=f"warren {name}", standalone_mode=False)
    except Exception as error:
        if type(error).__name__ == "Abort":
            # click turns Ctrl+C into Abort; the dispatcher has the exit status for it.
            raise KeyboardInterrupt from None
        if not hasattr(error, "format_message"):
            raise
        # Errors of click, recognised by their method: their module differs between typer's releases.
        text = str(error.format_message())
        if "\n" in text or not text:
            write_lines(text)
            return ExitStatus.USAGE
        raise UsageError(f"{text.rstrip('.')} (see `warren {name} --help`)") from None
    return status if isinstance(status, int) else 0


def broker_url(given: str | None) -> str:
    """Return the URL `given` with `--url` or, if that is None, the one in the environment variable AMQP_URL.

    :raises UsageError: if neither is set, or it is not an AMQP URL
    """
    url = given or os.environ.get("AMQP_URL")
    if not url:
        raise UsageError("no broker is named; use --url amqp://user:password@host:port/vhost, or AMQP_URL")
    return validated_url(url)


def validated_url(url: str) -> str:
    """Return the URL if it is valid.

    :raises UsageError: if it is not an AMQP URL
    """
    from warren.wire.amqp_url import parse_url

    try:
        parse_url(url)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return url
