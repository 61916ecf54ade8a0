"""`warren timers ls|cancel NAME`: the timers that a store keeps, from a shell."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from warren.cli.typer_commands import Json, commands, print_json, run
from warren.core.errors import ExitStatus
from warren.patterns.stores.open_by_url import open_store_from_url
from warren.patterns.stores.store import StoreUnavailable
from warren.patterns.timers.timers import TimerInfo, Timers

timers: typer.Typer = commands("Look at timers, and cancel them.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="of the set of timers, as in Timers(NAME, ...)")]
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


def main(arguments: Sequence[str]) -> int:
    """Run one of them.

    :raises UsageError: for wrong words, or a store that is not there.
    """
    try:
        return run(timers, "timers", arguments)
    except StoreUnavailable as error:
        print(f"warren timers: {error}", file=sys.stderr)
        return ExitStatus.IO


@timers.command("ls")
def list_timers(name: Name, store: StoreAt, prefix: Prefix = "warren:", as_json: Json = False) -> None:
    """List timers, those that are due first at the top."""

    async def read() -> Sequence[TimerInfo]:
        async with open_store_from_url(store, prefix) as kept:
            return await Timers(name, store=kept, sends=[]).listed()

    found = asyncio.run(read())
    if as_json:
        print_json([asdict(timer) for timer in found])
        return
    for timer in found:
        print(f"{timer.due:%Y-%m-%d %H:%M:%S}  {timer.name}  {timer.schedule}  {timer.message}")


@timers.command("cancel")
def cancel_timer(
    name: Name,
    timer: Annotated[str, typer.Argument(metavar="TIMER", help="which one, as `ls` lists it")],
    store: StoreAt,
    prefix: Prefix = "warren:",
) -> int:
    """Take a timer away; status 1 if there is none, or its only time has come."""

    async def take() -> bool:
        async with open_store_from_url(store, prefix) as kept:
            return await Timers(name, store=kept, sends=[]).cancel(timer)

    if asyncio.run(take()):
        print(f"cancelled: {timer}")
        return ExitStatus.SUCCESS
    print(f"nothing to cancel: there is no timer {timer!r}, or its only time has come", file=sys.stderr)
    return ExitStatus.FAILED
