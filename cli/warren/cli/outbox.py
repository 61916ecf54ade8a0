"""`warren outbox ls|show|retry|skip`: list and show the messages that wait in an outbox, retry and skip them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

import typer

from warren.cli.typer_commands import Json, command_group, run_group
from warren.core.command_output import (
    confirm,
    input_is_terminal,
    write_error,
    write_fields,
    write_json,
    write_line,
)
from warren.core.errors import ExitStatus, UsageError
from warren.core.text_escapes import escape_value
from warren.patterns.outbox.inspection import OutboxInspection, WaitingMessage, open_outbox
from warren.patterns.stores.store import StoreUnavailable

outbox: typer.Typer = command_group(
    "List and show the messages that wait in an outbox, retry refused ones now, or skip them."
)

Database = Annotated[
    str,
    typer.Option(
        "--database",
        metavar="URL",
        envvar="WARREN_DATABASE",
        help="database of the outbox: postgresql://..., or an SQLite file",
    ),
]
TableName = Annotated[str, typer.Option("--table", metavar="NAME", help="table of the outbox's messages")]
Number = Annotated[int, typer.Argument(metavar="ID", help="id of the message, as `ls` prints it")]

DEFAULT_TABLE = "warren_outbox"
LISTED = 100
"""Largest number of messages that `warren outbox ls` prints without `--limit`."""

Answer = TypeVar("Answer")


def main(arguments: Sequence[str]) -> int:
    """Run one of the subcommands `ls`, `show`, `retry` and `skip`, and return its exit status.

    :raises UsageError: for wrong arguments, or a database without such an outbox
    """
    try:
        return run_group(outbox, "outbox", arguments)
    except StoreUnavailable as error:
        write_error(f"warren outbox: {error}")
        return ExitStatus.IO


@outbox.command("ls")
def list_messages(
    database: Database,
    table: TableName = DEFAULT_TABLE,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, help="print at most N messages")
    ] = LISTED,
    as_json: Json = False,
) -> int:
    """List waiting messages, the oldest first. `refused`: the broker refused the message, and the relay tries it again;
    `held_back`: an earlier message with the same ordering key is refused."""
    found, total = _run(database, table, lambda opened: opened.messages(limit))
    if as_json:
        write_json([_summary(message) for message in found])
        return ExitStatus.SUCCESS
    for message in found:
        sent = message.outgoing
        target = f"{sent.exchange or '(default)'}/{sent.routing_key}"
        key = "-" if message.ordered_by is None else message.ordered_by
        kind = sent.properties.get("type", "-")
        why = f"  {message.attempts} attempts: {message.error}" if message.error else ""
        texts = map(escape_value, (message.state, key, str(kind), target))
        write_line("  ".join((str(message.id), _time(message.added_ms), *texts)) + why)
    rest = "; --limit shows more" if len(found) < total else ""
    write_line(f"{len(found)} of {total} waiting messages{rest}")
    return ExitStatus.SUCCESS


@outbox.command()
def show(number: Number, database: Database, table: TableName = DEFAULT_TABLE, as_json: Json = False) -> int:
    """Show one waiting message with its properties, headers and body. The exit status is 1 if there is none."""
    message = _run(database, table, lambda opened: opened.message(number))
    if message is None:
        return _missing(number)
    details = _summary(message) | {
        "properties": message.outgoing.properties,
        "headers": message.outgoing.headers,
        "body": message.outgoing.body.decode(errors="replace"),
    }
    if as_json:
        write_json(details)
        return ExitStatus.SUCCESS
    write_fields(details, str(details["body"]))
    return ExitStatus.SUCCESS


@outbox.command()
def retry(
    database: Database,
    number: Annotated[
        int | None, typer.Argument(metavar="[ID]", help="id of the message, as `ls` prints it")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="all refused messages")] = False,
    table: TableName = DEFAULT_TABLE,
) -> int:
    """Let the relay try a refused message again now, instead of at the end of its wait. The exit status is 1 if no refused
    message has this id."""
    if (number is None) != every:
        raise UsageError("give the id of a message, or --all")
    requested = _run(database, table, lambda opened: opened.retry(number))
    if requested or every:
        write_line(f"{requested} messages will be tried again")
        return ExitStatus.SUCCESS
    write_error(f"warren outbox: no refused message has the id {number}")
    return ExitStatus.FAILED


@outbox.command()
def skip(
    number: Number,
    database: Database,
    table: TableName = DEFAULT_TABLE,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask for confirmation")] = False,
) -> int:
    """Delete a waiting message permanently, so that the messages that it holds back are published. Save it first with
    `show`. The exit status is 1 if there is none with this id."""
    if not yes:
        if not input_is_terminal():
            raise UsageError("skip deletes a message permanently; confirm with --yes")
        if not confirm(f"Delete message {number} permanently?"):
            return ExitStatus.FAILED
    if not _run(database, table, lambda opened: opened.skip(number)):
        return _missing(number)
    write_line(f"skipped: {number}")
    return ExitStatus.SUCCESS


def _run(database: str, table: str, work: Callable[[OutboxInspection], Awaitable[Answer]]) -> Answer:
    async def opened() -> Answer:
        async with open_outbox(database, table) as found:
            return await work(found)

    return asyncio.run(opened())


def _missing(number: int) -> int:
    write_error(f"warren outbox: no message with the id {number} waits")
    return ExitStatus.FAILED


def _summary(message: WaitingMessage) -> dict[str, Any]:
    return {
        "id": message.id,
        "state": message.state,
        "ordered_by": message.ordered_by,
        "added": _time(message.added_ms),
        "message_id": message.outgoing.message_id,
        "type": message.outgoing.properties.get("type"),
        "exchange": message.outgoing.exchange,
        "routing_key": message.outgoing.routing_key,
        "attempts": message.attempts,
        "error": message.error,
        "retry": None if message.retry_ms is None else _time(message.retry_ms),
    }


def _time(milliseconds: int) -> str:
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M:%S}"
