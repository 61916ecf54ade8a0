"""`warren saga ls|show NAME`: list sagas with their states, and show the history of one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Annotated

import typer

from warren.cli.typer_commands import Json, command_group, run_group
from warren.core.command_output import write_error, write_json, write_line, write_lines
from warren.core.errors import ExitStatus, UsageError
from warren.core.text_escapes import escape_value
from warren.patterns.saga.history import SagaHistory, read_histories, read_history
from warren.patterns.stores.open_by_url import open_store_from_url
from warren.patterns.stores.store import StoreUnavailable

saga: typer.Typer = command_group(
    "List sagas with their states and unpublished messages, and show the history of one."
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="the saga's name, as in Saga(NAME, ...)")]
StoreAt = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="URL",
        envvar="WARREN_STORE",
        help="redis://..., postgresql://..., or an SQLite file",
    ),
]
Prefix = Annotated[str, typer.Option(metavar="TEXT", help="prefix of the keys in Redis")]

LISTED = 100
"""Largest number of sagas that `warren saga ls` prints without `--limit`."""


def main(arguments: Sequence[str]) -> int:
    """Run one of the subcommands `ls` and `show`, and return its exit status.

    :raises UsageError: for wrong arguments, or a store or saga that does not exist
    """
    try:
        return run_group(saga, "saga", arguments)
    except StoreUnavailable as error:
        write_error(f"warren saga: {error}")
        return ExitStatus.IO


@saga.command("ls")
def list_sagas(
    name: Name,
    store: StoreAt,
    state: Annotated[str | None, typer.Option(metavar="STATE", help="only those in this state")] = None,
    owing: Annotated[
        bool, typer.Option("--owing", help="only those with messages that are not published")
    ] = False,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="at most N")] = LISTED,
    prefix: Prefix = "warren:",
    as_json: Json = False,
) -> None:
    """List sagas, the most recently changed first."""

    async def collect() -> list[SagaHistory]:
        async with open_store_from_url(store, prefix) as opened:
            return [
                history
                async for history in read_histories(opened, name, now_ms=int(time.time() * 1000))
                if (state is None or history.state == state) and (history.pending or not owing)
            ]

    found = asyncio.run(collect())
    found.sort(key=lambda history: (-history.last_transition_at.timestamp(), history.key))
    if as_json:
        write_json([history.as_json() for history in found[:limit]])
        return
    for history in found[:limit]:
        owes = f"  owes {', '.join(history.pending)}" if history.pending else ""
        state, key = escape_value(history.state), escape_value(history.key)
        write_line(f"{history.last_transition_at:%Y-%m-%d %H:%M:%S}  {state:<20}  {key}{owes}")
    if len(found) > limit:
        write_line(f"and {len(found) - limit} more; show them with --limit {len(found)}")


@saga.command("show")
def show_saga(
    name: Name,
    key: Annotated[str, typer.Argument(metavar="KEY", help="key of the saga, such as an order id")],
    store: StoreAt,
    prefix: Prefix = "warren:",
    as_json: Json = False,
) -> None:
    """Show the history of one saga."""

    async def read() -> SagaHistory | None:
        async with open_store_from_url(store, prefix) as opened:
            return await read_history(opened, name, key, now_ms=int(time.time() * 1000))

    history = asyncio.run(read())
    if history is None:
        raise UsageError(
            f"this store has no saga {name} with the key {key!r}: it never started, or was deleted"
        )
    if as_json:
        write_json(history.as_json())
    else:
        write_lines(str(history))
