"""`warren dlq ls|show|replay|discard QUEUE`: dead letters, looked at and settled from a shell."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from warren.cli.import_target import load
from warren.cli.typer_commands import Json, Url, broker_url, commands, print_json, run
from warren.core.errors import ExitStatus, UsageError
from warren.patterns.dead_letters.parked_message import ParkedMessage
from warren.patterns.dead_letters.parking_lot import ParkingLot, count_messages
from warren.patterns.dead_letters.replay import SelectionResult, discard, replay
from warren.patterns.dead_letters.selection import DeadLetterSelection
from warren.sdk import App, ConfigError, TopologyMismatch, WarrenError
from warren.sdk import Queue as DeclaredQueue
from warren.sdk.extend import duration

dlq: typer.Typer = commands(
    "Look at dead letters, replay them to where they were published, or discard them."
)

Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="the queue that holds them, as in billing.dead")]
DiedIn = Annotated[
    str | None, typer.Option("--queue", metavar="NAME", help="died in this queue (* is any text)")
]
Reason = Annotated[
    str | None,
    typer.Option(
        metavar="REASON",
        help="failed, undecodable, unknown_type, unknown_content_type, rejected, expired, maxlen, delivery_limit",
    ),
]
Error = Annotated[
    str | None, typer.Option(metavar="TYPE", help="the type of the exception, as in ValueError (*)")
]
Key = Annotated[str | None, typer.Option(metavar="KEY", help="published with this routing key (*)")]
OlderThan = Annotated[
    str | None, typer.Option(metavar="TIME", help="died at least so long ago, as in 90s, 30m, 2h")
]
NewerThan = Annotated[str | None, typer.Option(metavar="TIME", help="died at most so long ago")]
MessageId = Annotated[str | None, typer.Option("--id", metavar="ID", help="the message with this id")]
Rate = Annotated[float | None, typer.Option(metavar="N", help="at most N messages a second")]
Limit = Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="at most N messages")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="say what would be done, and change nothing")]

LISTED = 100
ERROR_CHARACTERS = 60

Result = TypeVar("Result")


def main(arguments: Sequence[str]) -> int:
    """Run one of them.

    :raises UsageError: for wrong words, a queue that is not there, or no broker named.
    """
    try:
        return run(dlq, "dlq", arguments)
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
    target: Annotated[str, typer.Argument(metavar="MODULE:APP", help="the App, as in shop.main:app")],
    url: Url = None,
    as_json: Json = False,
) -> int:
    """List the dead letter queues of an App, with how many letters each holds. Ends with 1 if there are any."""
    app = load(target, App, "an App")
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
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="show at most N")] = LISTED,
    url: Url = None,
    as_json: Json = False,
) -> int:
    """List dead letters, the oldest first. They stay where they are."""
    which = _which(died_in, reason, exception, key, older_than, newer_than, message_id)
    letters, size = asyncio.run(_read(broker_url(url), queue, which, limit))
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
    message_id: Annotated[str, typer.Argument(metavar="ID", help="its message id")],
    url: Url = None,
    as_json: Json = False,
) -> int:
    """Show one dead letter with its headers and body. Ends with 1 if it is not there."""
    letters, _ = asyncio.run(_read(broker_url(url), queue, DeadLetterSelection(message_id=message_id), 1))
    if not letters:
        print(f"warren dlq: no message {message_id} in {queue}", file=sys.stderr)
        return ExitStatus.FAILED
    details = _details(letters[0])
    if as_json:
        print_json(details)
        return ExitStatus.SUCCESS
    for name, value in details.items():
        if isinstance(value, dict):
            print(f"{name}:")
            for inner, text in value.items():
                print(f"  {inner}: {text}")
        elif name != "body":
            print(f"{name}: {'' if value is None else value}")
    print(f"\n{_body_text(letters[0])}")
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
        typer.Option("--to-queue", help="to the queue where it died, not to its exchange and all its queues"),
    ] = False,
    url: Url = None,
    as_json: Json = False,
) -> int:
    """Publish dead letters again where they were published first, marked `warren-replayed`. Each leaves the queue after the
    broker's confirm: stopped half-way nothing is lost, and started again it goes on. Ends with 1 if some could not be."""
    which = _which(died_in, reason, exception, key, older_than, newer_than, message_id)
    address = broker_url(url)
    _check_rate(rate)

    async def work(progress: Callable[[ParkingLot], Callable[[int], None]]) -> SelectionResult:
        async with ParkingLot(address, queue) as lot, App(address, name="warren dlq", declare="never") as app:
            return await replay(
                lot, app, which, rate=rate, limit=limit, dry_run=dry_run, to_queue=to_queue, progress=progress(lot)
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
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
    url: Url = None,
    as_json: Json = False,
) -> int:
    """Remove dead letters for good."""
    which = _which(died_in, reason, exception, key, older_than, newer_than, message_id)
    address = broker_url(url)
    _check_rate(rate)
    if not (yes or dry_run):
        if not sys.stdin.isatty():
            raise UsageError("discard removes messages for good: say --yes, or --dry-run to see how many")
        if not typer.confirm(
            f"Remove {'all' if which == DeadLetterSelection() else 'these'} dead letters of {queue} for good?"
        ):
            return ExitStatus.FAILED

    async def work(progress: Callable[[ParkingLot], Callable[[int], None]]) -> SelectionResult:
        async with ParkingLot(address, queue) as lot:
            return await discard(lot, which, rate=rate, limit=limit, dry_run=dry_run, progress=progress(lot))

    return _report("discarded", _settle(work), queue, dry_run, as_json)


def _which(
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
        raise UsageError("--rate is how many messages a second: more than 0")


async def _read(
    url: str, queue: str, which: DeadLetterSelection, limit: int
) -> tuple[list[ParkedMessage], int]:
    found: list[ParkedMessage] = []
    now = datetime.now(UTC)
    async with ParkingLot(url, queue) as lot:
        async for letter in lot:
            if which(letter, now):
                found.append(letter)
                if len(found) == limit:
                    break
    return found, lot.size


def _settle(
    work: Callable[[Callable[[ParkingLot], Callable[[int], None]]], Awaitable[SelectionResult]],
) -> SelectionResult:
    async def run() -> SelectionResult:
        return await work(started)

    with _progress() as started:
        return asyncio.run(run())


@contextmanager
def _progress() -> Iterator[Callable[[ParkingLot], Callable[[int], None]]]:
    """A bar on standard error, where a person sees it."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:

        def started(lot: ParkingLot) -> Callable[[int], None]:
            task = bar.add_task(lot.queue, total=lot.size)
            return lambda read: bar.update(task, completed=read)

        yield started


def _report(what: str, settled: SelectionResult, queue: str, dry_run: bool, as_json: bool) -> int:
    failed = [{"message_id": letter.message_id, "error": str(error)} for letter, error in settled.failed]
    if as_json:
        counts = {"read": settled.read, "matched": settled.matched, what: settled.done, "dry_run": dry_run}
        print_json({**counts, "failed": failed})
    elif dry_run:
        print(f"{settled.matched} of {settled.read} letters in {queue} would be {what}")
    else:
        print(f"{settled.done} of {settled.read} letters in {queue} {what}")
    if not as_json:
        for failure in failed:
            print(f"not {what}: {failure['message_id']}: {failure['error']}", file=sys.stderr)
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
        # What a message holds is its publisher's: no markup, and nothing that moves a terminal's cursor.
        table.add_row(*(escape(_printable(cell)) for cell in cells))
    console = Console() if sys.stdout.isatty() else Console(width=250)
    console.print(table)


def _details(letter: ParkedMessage) -> dict[str, Any]:
    delivery = letter.delivery
    try:
        headers = {_printable(name): _plain(value) for name, value in delivery.headers.items()}
    except ValueError as error:
        headers = {"unreadable": str(error)}
    properties = {name: value for name, value in delivery.properties.items() if name != "message_id"}
    details = {**letter.as_dict(), "properties": properties, "headers": headers}
    try:
        return {**details, "body": delivery.body.decode()}
    except UnicodeDecodeError:
        return {**details, "body_base64": base64.b64encode(delivery.body).decode()}


def _body_text(letter: ParkedMessage) -> str:
    try:
        text = letter.delivery.body.decode()
    except UnicodeDecodeError:
        return repr(letter.delivery.body)
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return "\n".join(_printable(line) for line in text.split("\n"))


def _plain(value: Any) -> Any:
    """A header's value as JSON has it."""
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value if isinstance(value, int | float | bool | None) else _printable(str(value))


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
