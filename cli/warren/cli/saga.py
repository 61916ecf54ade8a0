"""`warren saga ls|show NAME`: where sagas stand and how they got there, from a shell."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Annotated

import typer

from warren.cli.typer_commands import Json, commands, print_json, run
from warren.core.errors import ExitStatus, UsageError
from warren.patterns.saga.history import SagaHistory, read_histories, read_history
from warren.patterns.stores.open_by_url import open_store_from_url
from warren.patterns.stores.store import StoreUnavailable

saga: typer.Typer = commands("Look at sagas: where each stands, what it owes, and how it got there.")

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
Prefix = Annotated[str, typer.Option(metavar="TEXT", help="of the keys in Redis")]

LISTED = 100


def main(arguments: Sequence[str]) -> int:
    """Run one of them.

    :raises UsageError: for wrong words, or a store or saga that is not there.
    """
    try:
        return run(saga, "saga", arguments)
    except StoreUnavailable as error:
        print(f"warren saga: {error}", file=sys.stderr)
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
    """List sagas, those that moved last at the top."""

    async def collect() -> list[SagaHistory]:
        async with open_store_from_url(store, prefix) as kept:
            return [
                story
                async for story in read_histories(kept, name, now_ms=int(time.time() * 1000))
                if (state is None or story.state == state) and (story.owed or not owing)
            ]

    found = asyncio.run(collect())
    found.sort(key=lambda story: (-story.moved.timestamp(), story.key))
    if as_json:
        print_json([story.as_json() for story in found[:limit]])
        return
    for story in found[:limit]:
        owes = f"  owes {', '.join(story.owed)}" if story.owed else ""
        print(f"{story.moved:%Y-%m-%d %H:%M:%S}  {story.state:<20}  {story.key}{owes}")
    if len(found) > limit:
        print(f"and {len(found) - limit} more: --limit {len(found)}")


@saga.command("show")
def show_saga(
    name: Name,
    key: Annotated[str, typer.Argument(metavar="KEY", help="which one, as in an order's id")],
    store: StoreAt,
    prefix: Prefix = "warren:",
    as_json: Json = False,
) -> None:
    """Tell the story of one saga."""

    async def read() -> SagaHistory | None:
        async with open_store_from_url(store, prefix) as kept:
            return await read_history(kept, name, key, now_ms=int(time.time() * 1000))

    story = asyncio.run(read())
    if story is None:
        raise UsageError(
            f"there is no saga {name} of {key!r} in this store: it never began, or was forgotten"
        )
    if as_json:
        print_json(story.as_json())
    else:
        print(story)
