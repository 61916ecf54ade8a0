"""`warren dlq ls|show|replay|discard QUEUE`: list, show, replay and discard dead letters."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from warren.cli.import_target import load_object
from warren.cli.typer_commands import (
    Json,
    Url,
    broker_url,
    command_group,
    print_fields,
    print_json,
    run_group,
)
from warren.core.errors import ExitStatus, UsageError
from warren.patterns.dead_letters.parked_message import ParkedMessage, printable
from warren.patterns.dead_letters.parking_lot import ParkingLot, count_messages
from warren.patterns.dead_letters.replay import SelectionResult, discard, find, replay
from warren.patterns.dead_letters.selection import DeadLetterSelection
from warren.sdk import App, ConfigError, TopologyMismatch, WarrenError
from warren.sdk import Queue as DeclaredQueue
from warren.sdk.extend import duration

dlq: typer.Typer = command_group(
    "List and show dead letters, replay them to where they were published, or discard them."
)

Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="dead letter queue, such as billing.dead")]
DiedIn = Annotated[
    str | None,
    typer.Option("--queue", metavar="NAME", help="queue in which the message died (* is any text)"),
]
Reason = Annotated[
    str | None,
    typer.Option(
        metavar="REASON",
        help="failed, undecodable, unknown_type, unknown_content_type, rejected, expired, maxlen, delivery_limit",
    ),
]
Error = Annotated[
    str | None, typer.Option(metavar="TYPE", help="type of the exception, such as ValueError (* is any text)")
]
Key = Annotated[str | None, typer.Option(metavar="KEY", help="routing key of the publish (* is any text)")]
OlderThan = Annotated[
    str | None, typer.Option(metavar="TIME", help="least time since the death, such as 90s, 30m, 2h")
]
NewerThan = Annotated[str | None, typer.Option(metavar="TIME", help="greatest time since the death")]
MessageId = Annotated[str | None, typer.Option("--id", metavar="ID", help="message id")]
Rate = Annotated[float | None, typer.Option(metavar="N", help="at most N messages a second")]
Limit = Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="at most N messages")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="print what would be done, and change nothing")]

LISTED = 100
"""Largest number of dead letters that `warren dlq ls` prints without `--limit`."""
ERROR_CHARACTERS = 60
"""Number of characters to which `warren dlq ls` cuts the text of an error."""


def main(arguments: Sequence[str]) -> int:
    """Run one of the subcommands `ls`, `show`, `replay` and `discard`, and return its exit status.

    :raises UsageError: for wrong arguments, a queue that does not exist, or if no broker is named
    """
    try:
        return run_group(dlq, "dlq", arguments)
    except TopologyMismatch as error:
        hint = "; dead letters are in <queue>.dead by default" if error.reply_code == 404 else ""
        raise UsageError(f"{error}{hint}") from None
    except ConfigError as error:
        raise UsageError(str(error)) from None
    except WarrenError as error:
        print(f"warren dlq: {error}", file=sys.stderr)
        return ExitStatus.IO


@dlq.command("queues")
def list_queues(
    target: Annotated[str, typer.Argument(metavar="MODULE:APP", help="the App, such as shop.main:app")],
    url: Url = None,
    as_json: Json = False,
) -> int:
    """List the dead letter queues of an App with their number of letters. The exit status is 1 if there are letters."""
    app = load_object(target, App, "an App")
    queues = [item.dead_letter_queue for item in app.topology if isinstance(item, DeclaredQueue)]
    names = sorted({queue.name for queue in queues if queue is not None})
    counts = asyncio.run(count_messages(url or app.url or broker_url(None), names))
    if as_json:
        print_json(counts)
    else:
        for name in names:
            print(f"{name}\t{'not declared' if counts[name] is None else counts[name]}")
    return ExitStatus.FAILED if any(counts.values()) else ExitStatus.SUCCESS


@dlq.command("ls")
def list_letters(
    queue: Queue,
    died_in: DiedIn = None,
    reason: Reason = None,
    exception: Error = None,
    key: Key = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    message_id: MessageId = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, help="print at most N letters")
    ] = LISTED,
    url: Url = None,
    as_json: Json = False,
) -> int:
    """List dead letters, the oldest first. They stay in the queue."""
    selection = _selection(died_in, reason, exception, key, older_than, newer_than, message_id)
    letters, size = asyncio.run(_find(broker_url(url), queue, selection, limit))
    if as_json:
        print_json([letter.as_dict() for letter in letters])
    else:
        _show_table(letters)
        rest = " at most; --limit shows more" if len(letters) == limit else ""
        print(f"{len(letters)} of {size} letters in {queue}{rest}")
    return ExitStatus.SUCCESS


@dlq.command()
def show(
    queue: Queue,
    message_id: Annotated[str, typer.Argument(metavar="ID", help="message id")],
    url: Url = None,
    as_json: Json = False,
) -> int:
    """Show one dead letter with its headers and body. The exit status is 1 if there is none with this id."""
    letters, _ = asyncio.run(_find(broker_url(url), queue, DeadLetterSelection(message_id=message_id), 1))
    if not letters:
        print(f"warren dlq: no message {message_id} in {queue}", file=sys.stderr)
        return ExitStatus.FAILED
    details = letters[0].details()
    if as_json:
        print_json(details)
        return ExitStatus.SUCCESS
    print_fields(details, _body_text(letters[0]))
    return ExitStatus.SUCCESS


@dlq.command("replay")
def replay_letters(
    queue: Queue,
    died_in: DiedIn = None,
    reason: Reason = None,
    exception: Error = None,
    key: Key = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    message_id: MessageId = None,
    limit: Limit = None,
    rate: Rate = None,
    dry_run: DryRun = False,
    to_queue: Annotated[
        bool,
        typer.Option(
            "--to-queue", help="to the queue in which it died, instead of its exchange and all bound queues"
        ),
    ] = False,
    url: Url = None,
    as_json: Json = False,
) -> int:
    """Publish dead letters again where they were published first, with the header `warren-replayed`. Each is removed after
    the publisher confirm: an interrupted replay loses nothing, and continues when it is started again. The exit status is 1
    if letters could not be replayed."""
    selection = _selection(died_in, reason, exception, key, older_than, newer_than, message_id)
    address = broker_url(url)
    _check_rate(rate)

    async def work(progress: Callable[[ParkingLot], Callable[[int], None]]) -> SelectionResult:
        async with ParkingLot(address, queue) as lot, App(address, name="warren dlq", declare="never") as app:
            return await replay(
                lot, app, selection, rate=rate, limit=limit, dry_run=dry_run, to_queue=to_queue, progress=progress(lot)
            )  # fmt: skip

    return _report("replayed", _settle(work), queue, dry_run, as_json)


@dlq.command("discard")
def discard_letters(
    queue: Queue,
    died_in: DiedIn = None,
    reason: Reason = None,
    exception: Error = None,
    key: Key = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    message_id: MessageId = None,
    limit: Limit = None,
    rate: Rate = None,
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask for confirmation")] = False,
    url: Url = None,
    as_json: Json = False,
) -> int:
    """Remove dead letters permanently."""
    selection = _selection(died_in, reason, exception, key, older_than, newer_than, message_id)
    address = broker_url(url)
    _check_rate(rate)
    if not (yes or dry_run):
        if not sys.stdin.isatty():
            raise UsageError(
                "discard removes messages permanently; confirm with --yes, or use --dry-run to count them"
            )
        if not typer.confirm(
            f"Remove {'all' if selection == DeadLetterSelection() else 'these'} dead letters of {queue} permanently?"
        ):
            return ExitStatus.FAILED

    async def work(progress: Callable[[ParkingLot], Callable[[int], None]]) -> SelectionResult:
        async with ParkingLot(address, queue) as lot:
            return await discard(
                lot, selection, rate=rate, limit=limit, dry_run=dry_run, progress=progress(lot)
            )

    return _report("discarded", _settle(work), queue, dry_run, as_json)


def _selection(
    died_in: str | None,
    reason: str | None,
    exception: str | None,
    key: str | None,
    older_than: str | None,
    newer_than: str | None,
    message_id: str | None,
) -> DeadLetterSelection:
    return DeadLetterSelection(
        queue=died_in,
        reason=reason,
        exception=exception,
        key=key,
        older_than=_duration(older_than),
        newer_than=_duration(newer_than),
        message_id=message_id,
    )


def _duration(text: str | None) -> timedelta | None:
    return None if text is None else duration(text)


def _check_rate(rate: float | None) -> None:
    if rate is not None and rate <= 0:
        raise UsageError(f"--rate is {rate:g}; it must be greater than 0 messages a second")


async def _find(
    url: str, queue: str, selection: DeadLetterSelection, limit: int
) -> tuple[list[ParkedMessage], int]:
    """Return (dead letters that match a selection, at most `limit`; number of all letters in the queue).

    :param url: URL of the broker
    :param queue: name of the dead letter queue
    """
    async with ParkingLot(url, queue) as lot:
        return await find(lot, selection, limit=limit), lot.size


def _settle(
    work: Callable[[Callable[[ParkingLot], Callable[[int], None]]], Awaitable[SelectionResult]],
) -> SelectionResult:
    async def run_group() -> SelectionResult:
        return await work(started)

    with _progress() as started:
        return asyncio.run(run_group())


@contextmanager
def _progress() -> Iterator[Callable[[ParkingLot], Callable[[int], None]]]:
    """Show a progress bar on standard error, if that is a terminal.

    The context manager yields a function that adds a bar for an opened dead letter queue. That function returns the
    one that updates the bar; it takes the number of letters read so far.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:

        def started(lot: ParkingLot) -> Callable[[int], None]:
            task = bar.add_task(lot.queue, total=lot.size)
            return lambda read: bar.update(task, completed=read)

        yield started


def _report(verb: str, settled: SelectionResult, queue: str, dry_run: bool, as_json: bool) -> int:
    failed = [{"message_id": letter.message_id, "error": str(error)} for letter, error in settled.failed]
    if as_json:
        counts = {"read": settled.read, "matched": settled.matched, verb: settled.done, "dry_run": dry_run}
        print_json({**counts, "failed": failed})
    elif dry_run:
        print(f"{settled.matched} of {settled.read} letters in {queue} would be {verb}")
    else:
        print(f"{settled.done} of {settled.read} letters in {queue} {verb}")
    if not as_json:
        for failure in failed:
            print(f"not {verb}: {failure['message_id']}: {failure['error']}", file=sys.stderr)
    return ExitStatus.FAILED if failed else ExitStatus.SUCCESS


def _show_table(letters: Sequence[ParkedMessage]) -> None:
    if not letters:
        return
    table = Table(box=None, pad_edge=False)
    for column in ("id", "type", "died in", "reason", "error", "key", "deaths", "last death", "bytes"):
        table.add_column(
            column, justify="right" if column in ("deaths", "bytes") else "left", overflow="fold"
        )
    for letter in letters:
        error = (
            letter.error if len(letter.error) <= ERROR_CHARACTERS else f"{letter.error[:ERROR_CHARACTERS]}..."
        )
        last = "" if letter.last_death is None else f"{letter.last_death:%Y-%m-%d %H:%M:%S}"
        cells = (
            letter.message_id, letter.delivery.type or "", letter.queue, letter.reason, error, letter.key,
            str(letter.deaths), last, str(len(letter.delivery.body)),
        )  # fmt: skip
        # Fields of a message may contain anything: no markup, and no control characters.
        table.add_row(*(escape(printable(cell)) for cell in cells))
    console = Console() if sys.stdout.isatty() else Console(width=250)
    console.print(table)


def _body_text(letter: ParkedMessage) -> str:
    try:
        text = letter.delivery.body.decode()
    except UnicodeDecodeError:
        return repr(letter.delivery.body)
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return "\n".join(printable(line) for line in text.split("\n"))
