"""Commands that are made with typer: what they share, and their errors as one line with the right exit status."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.main import get_command

from warren.core.errors import UsageError

Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="amqp://user:password@host:port/vhost (default: $AMQP_URL)"),
]
"""The option that names the broker; `broker_url` says what it means."""

Json = Annotated[bool, typer.Option("--json", help="print JSON")]
"""The option of commands whose output is data."""


def commands(description: str) -> typer.Typer:
    """A group of subcommands, without typer's own completion and tracebacks."""
    return typer.Typer(
        help=description,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )


def run(app: typer.Typer, name: str, words: Sequence[str]) -> int:
    """Run the command `warren NAME WORDS`: its exit status.

    :raises UsageError: for wrong words.
    """
    command = get_command(app)
    try:
        status = command.main(args=list(words), prog_name=f"warren {name}", standalone_mode=False)
    except Exception as error:
        if type(error).__name__ == "Abort":
            # What click makes of Ctrl+C; the dispatcher knows what that ends with.
            raise KeyboardInterrupt from None
        if not hasattr(error, "format_message"):
            raise
        # Click's own errors; which module they come from differs between typer's releases.
        text = str(error.format_message())
        if "\n" in text or not text:
            print(text)
            return 2
        raise UsageError(f"{text.rstrip('.')} (see `warren {name} --help`)") from None
    return status if isinstance(status, int) else 0


def broker_url(given: str | None) -> str:
    """The URL of `--url`, else of the environment.

    :raises UsageError: if nothing names a broker.
    """
    url = given or os.environ.get("AMQP_URL")
    if not url:
        raise UsageError(
            "which broker? name it with --url amqp://user:password@host:port/vhost, or in AMQP_URL"
        )
    return checked_url(url)


def checked_url(url: str) -> str:
    """The URL itself.

    :raises UsageError: if it is no AMQP URL.
    """
    from warren.wire.amqp_url import parse_url

    try:
        parse_url(url)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return url


def print_json(value: Any) -> None:
    """Data for a program: one JSON document on standard output."""
    json.dump(value, sys.stdout, indent=2, default=str, ensure_ascii=False)
    sys.stdout.write("\n")
