"""`warren timers ls|cancel NAME`: list and cancel the timers in a store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from warren.cli.typer_commands import Json, command_group, run_group
from warren.core.command_output import write_error, write_json, write_line
from warren.core.errors import ExitStatus
from warren.core.text_escapes import escape_value
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
        write_error(f"warren timers: {error}")
        return ExitStatus.IO


@timers.command("ls")
def list_timers(name: Name, store: StoreAt, prefix: Prefix = "warren:", as_json: Json = False) -> None:
    """List timers, ordered by their due time."""

    async def read() -> Sequence[TimerInfo]:
        async with open_store_from_url(store, prefix) as opened:
            return await Timers(name, store=opened, sends=[]).scheduled()

    found = asyncio.run(read())
    if as_json:
        write_json([asdict(timer) for timer in found])
        return
    for timer in found:
        texts = map(escape_value, (timer.name, timer.schedule, timer.message))
        write_line("  ".join((f"{timer.due:%Y-%m-%d %H:%M:%S}", *texts)))


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
        write_line(f"cancelled: {escape_value(timer)}")
        return ExitStatus.SUCCESS
    write_error(f"there is no timer {timer!r}, or it was due only once and has fired")
    return ExitStatus.FAILED
