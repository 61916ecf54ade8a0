"""`warren dlq ls|groups|show|edit|replay|discard QUEUE`: list, group, show, edit, replay and discard dead letters."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from pprint import pformat
from typing import Annotated, NoReturn

import typer

from warren.cli.import_target import load_object
from warren.cli.letter_editor import edit_by_options, edit_in_editor
from warren.cli.typer_commands import (
    Json,
    Url,
    broker_url,
    command_group,
    run_group,
)
from warren.core.command_output import (
    confirm,
    input_is_terminal,
    output_is_terminal,
    write_error,
    write_fields,
    write_json,
    write_line,
    write_row,
    write_table,
)
from warren.core.errors import ExitStatus, UsageError
from warren.core.progress_bars import AddBar, progress_bars
from warren.core.text_escapes import escape_value, json_text
from warren.patterns.dead_letters.dead_letter_queue import dead_letter_queue
from warren.patterns.dead_letters.edit import LetterEdit, replay_edited
from warren.patterns.dead_letters.groups import DeadLetterGroup, group
from warren.patterns.dead_letters.parked_message import ParkedMessage
from warren.patterns.dead_letters.parking_lot import ParkingLot, count_messages
from warren.patterns.dead_letters.replay import SelectionResult, discard, find, replay
from warren.patterns.dead_letters.selection import DeadLetterSelection
from warren.sdk import App, ConfigError, TopologyMismatch, WarrenError
from warren.sdk import Queue as DeclaredQueue
from warren.sdk.extend import duration

dlq: typer.Typer = command_group(
    "List, group and show dead letters, edit them, replay them to where they were published, or discard them."
)

Queue = Annotated[
    str,
    typer.Argument(
        metavar="QUEUE", help="dead letter queue, such as billing.dead; billing means billing.dead"
    ),
]
Exact = Annotated[
    bool, typer.Option("--exact", help="the queue of this very name, even if there is a QUEUE.dead")
]
DiedIn = Annotated[
    str | None,
    typer.Option("--queue", metavar="NAME", help="queue in which the message died (* is any text)"),
]
Reason = Annotated[
    str | None,
    typer.Option(
        metavar="REASON",
        help="failed, undecodable, unknown_type, unknown_content_type, unknown_content_encoding, rejected, expired, maxlen,"
        " delivery_limit",
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
Group = Annotated[
    str | None,
    typer.Option(
        "--group", metavar="GROUP", help="letters with one cause, by its id from `warren dlq groups`"
    ),
]
Rate = Annotated[
    str | None, typer.Option(metavar="N/UNIT", help="at most N messages a second, or as 50/s, 300/m, 1000/h")
]
Limit = Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="at most N messages")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="print what would be done, and change nothing")]

LetterId = Annotated[str, typer.Argument(metavar="ID", help="message id")]
ToExchange = Annotated[
    bool,
    typer.Option(
        "--to-exchange", help="to its exchange and all bound queues, instead of the queue in which it died"
    ),
]

LISTED = 100
"""Largest number of dead letters that `warren dlq ls` prints without `--limit`."""
RATE_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
"""Seconds of the units of `--rate`."""
ERROR_CHARACTERS = 60
"""Number of characters to which `warren dlq ls` cuts the text of an error on a terminal."""


def main(arguments: Sequence[str]) -> int:
    """Run one of the subcommands, such as `ls` or `replay`, and return its exit status.

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
        write_error(f"warren dlq: {error}")
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
        write_json(counts)
    else:
        for name in names:
            write_row((name, "not declared" if counts[name] is None else str(counts[name])))
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
    in_group: Group = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, help="print at most N letters")
    ] = LISTED,
    exact: Exact = False,
    url: Url = None,
    as_json: Json = False,
) -> int:
    """List dead letters, the oldest first. They stay in the queue."""
    selection = _selection(died_in, reason, exception, key, older_than, newer_than, message_id, in_group)
    address = broker_url(url)
    queue = _dead_letter_queue(address, queue, exact)
    letters, size = asyncio.run(_find(address, queue, selection, limit))
    if as_json:
        write_json([letter.as_dict() for letter in letters])
    else:
        _show_table(letters)
        rest = " at most; --limit shows more" if len(letters) == limit else ""
        write_line(f"{len(letters)} of {size} letters in {queue}{rest}")
    return ExitStatus.SUCCESS


@dlq.command()
def show(
    queue: Queue,
    message_id: LetterId,
    exact: Exact = False,
    url: Url = None,
    as_json: Json = False,
) -> int:
    """Show one dead letter with its headers and body. The exit status is 1 if there is none with this id."""
    address = broker_url(url)
    queue = _dead_letter_queue(address, queue, exact)
    letter = _letter(address, queue, message_id)
    if letter is None:
        return ExitStatus.FAILED
    details = letter.details()
    if as_json:
        write_json(details)
        return ExitStatus.SUCCESS
    write_fields(details, _body_text(letter.delivery.body))
    return ExitStatus.SUCCESS


@dlq.command("groups")
def list_groups(
    queue: Queue,
    died_in: DiedIn = None,
    reason: Reason = None,
    exception: Error = None,
    key: Key = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    exact: Exact = False,
    url: Url = None,
    as_json: Json = False,
) -> int:
    """List the causes of dead letters, the most frequent first: letters that died in the same queue, of the same type, for
    the same reason, with the same error but for numbers and ids. `--group` of ls, replay and discard takes a cause's id."""
    selection = _selection(died_in, reason, exception, key, older_than, newer_than, None)
    address = broker_url(url)
    queue = _dead_letter_queue(address, queue, exact)

    async def collect() -> tuple[list[DeadLetterGroup], int]:
        async with ParkingLot(address, queue) as lot:
            return await group(lot, selection), lot.size

    groups, size = asyncio.run(collect())
    if as_json:
        write_json([each.as_dict() for each in groups])
        return ExitStatus.SUCCESS
    _show_groups(groups)
    causes = "cause" if len(groups) == 1 else "causes"
    write_line(
        f"{len(groups)} {causes} of {sum(each.count for each in groups)} letters; {size} letters in {queue}"
    )
    return ExitStatus.SUCCESS


@dlq.command("edit")
def edit_letter(
    queue: Queue,
    message_id: LetterId,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="field of a JSON body, such as lines.0.price=7; may be repeated",
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="header; null removes it; may be repeated"),
    ] = None,
    body: Annotated[
        Path | None,
        typer.Option("--body", metavar="FILE", help="file with the new body; - is standard input"),
    ] = None,
    to_exchange: ToExchange = False,
    dry_run: DryRun = False,
    exact: Exact = False,
    url: Url = None,
) -> int:
    """Change one dead letter and replay it: in $VISUAL or $EDITOR, or by --set, --header and --body. The original is
    removed after the publisher confirm of the edited one, and stays if anything fails; the exit status is 1 then."""
    address = broker_url(url)
    queue = _dead_letter_queue(address, queue, exact)
    letter = _letter(address, queue, message_id)
    if letter is None:
        return ExitStatus.FAILED
    edit: LetterEdit | None
    if assignments or header or body is not None:
        edit = edit_by_options(letter, assignments or (), header or (), body)
    else:
        edit = edit_in_editor(letter)
    if edit is None:
        write_error(f"warren dlq: {message_id} was not changed, and not replayed")
        return ExitStatus.FAILED
    edited = edit.apply(letter.delivery)
    if dry_run:
        write_fields(
            {"properties": dict(edit.properties), "headers": dict(edit.headers)}, _body_text(edited.body)
        )
        return ExitStatus.SUCCESS
    if not asyncio.run(_replay_edited(address, queue, letter, edit, to_exchange)):
        write_error(
            f"warren dlq: {message_id} is no longer in {queue}, or is another message now; nothing was published"
        )
        return ExitStatus.FAILED
    write_line(f"{message_id} edited and replayed")
    return ExitStatus.SUCCESS


async def _replay_edited(
    url: str, queue: str, letter: ParkedMessage, edit: LetterEdit, to_exchange: bool
) -> bool:
    """Replay the edited letter; return False if the queue does not contain the letter as it was read before the edit."""
    async with ParkingLot(url, queue) as lot, App(url, name="warren dlq", declare="never") as app:
        async for found in lot:
            if _is_same(found, letter):
                await replay_edited(lot, app, found, edit, to_exchange=to_exchange)
                return True
    return False


def _is_same(one: ParkedMessage, other: ParkedMessage) -> bool:
    """Return whether two reads are of one letter. A quorum queue counts each reading in a header of its own."""
    parts = (
        (
            each.as_dict(),
            each.delivery.body,
            each.delivery.properties,
            {name: value for name, value in each.delivery.headers.items() if not name.startswith("x-")},
        )
        for each in (one, other)
    )
    # Compared as text, in which NaN equals NaN, and 1 differs from 1.0 and True. pformat sorts the headers: RabbitMQ 3.10
    # changes their order when it adds its count.
    return pformat(next(parts)) == pformat(next(parts))


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
    in_group: Group = None,
    limit: Limit = None,
    rate: Rate = None,
    dry_run: DryRun = False,
    to_exchange: ToExchange = False,
    exact: Exact = False,
    url: Url = None,
    as_json: Json = False,
) -> int:
    """Publish dead letters again to the queues in which they died, with the header `warren-replayed`. Each is removed after
    the publisher confirm: an interrupted replay loses nothing, and continues when it is started again. The exit status is 1
    if letters could not be replayed."""
    selection = _selection(died_in, reason, exception, key, older_than, newer_than, message_id, in_group)
    address = broker_url(url)
    per_second = _per_second(rate)
    queue = _dead_letter_queue(address, queue, exact)

    async def work(progress: Callable[[ParkingLot], Callable[[int], None]]) -> SelectionResult:
        async with ParkingLot(address, queue) as lot, App(address, name="warren dlq", declare="never") as app:
            return await replay(
                lot,
                app,
                selection,
                rate=per_second,
                limit=limit,
                dry_run=dry_run,
                to_exchange=to_exchange,
                progress=progress(lot),
            )

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
    in_group: Group = None,
    limit: Limit = None,
    rate: Rate = None,
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask for confirmation")] = False,
    exact: Exact = False,
    url: Url = None,
    as_json: Json = False,
) -> int:
    """Remove dead letters permanently."""
    selection = _selection(died_in, reason, exception, key, older_than, newer_than, message_id, in_group)
    address = broker_url(url)
    per_second = _per_second(rate)
    queue = _dead_letter_queue(address, queue, exact)
    if not (yes or dry_run):
        if not input_is_terminal():
            raise UsageError(
                "discard removes messages permanently; confirm with --yes, or use --dry-run to count them"
            )
        if not confirm(
            f"Remove {'all' if selection == DeadLetterSelection() else 'these'} dead letters of {queue} permanently?"
        ):
            return ExitStatus.FAILED

    async def work(progress: Callable[[ParkingLot], Callable[[int], None]]) -> SelectionResult:
        async with ParkingLot(address, queue) as lot:
            return await discard(
                lot, selection, rate=per_second, limit=limit, dry_run=dry_run, progress=progress(lot)
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
    in_group: str | None = None,
) -> DeadLetterSelection:
    return DeadLetterSelection(
        queue=died_in,
        reason=reason,
        exception=exception,
        key=key,
        older_than=_duration(older_than),
        newer_than=_duration(newer_than),
        message_id=message_id,
        group=in_group,
    )


def _duration(text: str | None) -> timedelta | None:
    return None if text is None else duration(text)


def _per_second(rate: str | None) -> float | None:
    """Return the messages a second that `--rate` allows: a number, or a number for a unit, such as 50/s or 300/m."""
    if rate is None:
        return None
    number, slash, unit = rate.partition("/")
    try:
        value = float(number) / RATE_SECONDS[unit.strip() if slash else "s"]
    except (ValueError, KeyError):
        value = 0.0
    if not 0 < value < float("inf"):
        raise UsageError(f"--rate {rate}: write messages a second, or for a unit: 50, 50/s, 300/m or 1000/h")
    return value


def _dead_letter_queue(url: str, queue: str, exact: bool) -> str:
    """Return the dead letter queue that QUEUE stands for, and print a line on standard error if it is another one."""
    if exact:
        return queue
    found = asyncio.run(dead_letter_queue(url, queue))
    if found != queue:
        write_error(f"{queue}: reading its dead letters in {found} (--exact reads {queue} itself)")
    return found


def _letter(url: str, queue: str, message_id: str) -> ParkedMessage | None:
    """Return the first dead letter with this id; print an error and return None if there is none."""
    letters, _ = asyncio.run(_find(url, queue, DeadLetterSelection(message_id=message_id), 1))
    if letters:
        return letters[0]
    write_error(f"warren dlq: no message {message_id} in {queue}")
    return None


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
    async def settle(add: AddBar) -> SelectionResult:
        return await work(lambda lot: add(lot.queue, lot.size))

    with progress_bars() as add:
        return asyncio.run(settle(add))


def _report(verb: str, settled: SelectionResult, queue: str, dry_run: bool, as_json: bool) -> int:
    failed = [{"message_id": letter.message_id, "error": str(error)} for letter, error in settled.failed]
    if as_json:
        counts = {"read": settled.read, "matched": settled.matched, verb: settled.done, "dry_run": dry_run}
        write_json({**counts, "failed": failed})
    elif dry_run:
        write_line(f"{settled.matched} of {settled.read} letters in {queue} would be {verb}")
    else:
        write_line(f"{settled.done} of {settled.read} letters in {queue} {verb}")
    if not as_json:
        for failure in failed:
            write_error(f"not {verb}: {escape_value(failure['message_id'])}: {failure['error']}")
    return ExitStatus.FAILED if failed else ExitStatus.SUCCESS


def _show_table(letters: Sequence[ParkedMessage]) -> None:
    if letters:
        columns = ("id", "type", "died in", "reason", "error", "key", "deaths", "last death", "bytes")
        write_table(columns, [_letter_cells(letter) for letter in letters], right=("deaths", "bytes"))


def _letter_cells(letter: ParkedMessage) -> tuple[str, ...]:
    error = letter.error
    if len(error) > ERROR_CHARACTERS and output_is_terminal():
        # The whole text stands in a pipe or file, with --json and in `warren dlq show`.
        error = f"{error[:ERROR_CHARACTERS]}..."
    last = "" if letter.last_death is None else f"{letter.last_death:%Y-%m-%d %H:%M:%S}"
    return (
        letter.message_id, letter.delivery.type or "", letter.queue, letter.reason, error, letter.key,
        str(letter.deaths), last, str(len(letter.delivery.body)),
    )  # fmt: skip


def _show_groups(groups: Sequence[DeadLetterGroup]) -> None:
    if groups:
        columns = ("group", "count", "died in", "type", "reason", "error", "first", "last", "example")
        write_table(columns, [_group_cells(each) for each in groups], right=("count",))


def _group_cells(each: DeadLetterGroup) -> tuple[str, ...]:
    first, last = ("" if time is None else f"{time:%Y-%m-%d %H:%M:%S}" for time in (each.first, each.last))
    cause = each.cause
    return (
        each.id, str(each.count), cause.queue, cause.type, cause.reason, cause.error, first, last, each.example,
    )  # fmt: skip


def _body_text(body: bytes) -> str:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return repr(body)
    try:
        # NaN in a body, which is not JSON, is shown as it is written.
        return json_text(json.loads(text, parse_constant=_refuse), indent=2)
    except (ValueError, RecursionError):
        return text


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)
