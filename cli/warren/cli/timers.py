"""`warren timers ls|cancel NAME`: list and cancel the timers in a store."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from warren.cli.typer_commands import Json, command_group, print_json, run_group
from warren.core.errors import ExitStatus
from warren.patterns.stores.open_by_url import open_store_from_url
from warren.patterns.stores.store import StoreUnavailable
from warren.patterns.timers.timers import TimerInfo, Timers

timers: typer.Typer = command_group("List timers, and cancel them.")

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="name of the set of timers, as in Timers(NAME, ...)")
]
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


def main(arguments: Sequence[str]) -> int:
    """Run one of the subcommands `ls` and `cancel`, and return its exit status.

    :raises UsageError: for wrong arguments, or a store that does not exist
    """
    try:
        return run_group(timers, "timers", arguments)
    except StoreUnavailable as error:
        print(f"warren timers: {error}", file=sys.stderr)
        return ExitStatus.IO


@timers.command("ls")
def list_timers(name: Name, store: StoreAt, prefix: Prefix = "warren:", as_json: Json = False) -> None:
    """List timers, ordered by their due time."""

    async def read() -> Sequence[TimerInfo]:
        async with open_store_from_url(store, prefix) as opened:
            return await Timers(name, store=opened, sends=[]).scheduled()

    found = asyncio.run(read())
    if as_json:
        print_json([asdict(timer) for timer in found])
        return
    for timer in found:
        print(f"{timer.due:%Y-%m-%d %H:%M:%S}  {timer.name}  {timer.schedule}  {timer.message}")


@timers.command("cancel")
def cancel_timer(
    name: Name,
    timer: Annotated[str, typer.Argument(metavar="TIMER", help="name of the timer, as `ls` prints it")],
    store: StoreAt,
    prefix: Prefix = "warren:",
) -> int:
    """Cancel a timer. The exit status is 1 if there is none, or it was due only once and has fired."""

    async def take() -> bool:
        async with open_store_from_url(store, prefix) as opened:
            return await Timers(name, store=opened, sends=[]).cancel(timer)

    if asyncio.run(take()):
        print(f"cancelled: {timer}")
        return ExitStatus.SUCCESS
    print(f"there is no timer {timer!r}, or it was due only once and has fired", file=sys.stderr)
    return ExitStatus.FAILED
