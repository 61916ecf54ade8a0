"""`warren trace MESSAGE-ID`: print the story of a message from captured events, and draw its sequence diagram."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from warren.cli.trace.diagrams import html_page, mermaid
from warren.cli.trace.event_stream import ReadReport, read_events
from warren.cli.typer_commands import Json, Url, broker_url, command_group, run_group
from warren.core.command_output import write_error, write_json, write_line, write_lines
from warren.core.errors import ExitStatus, UsageError
from warren.core.message_story import CapturedEvent, Causes, Story, tell, timeline
from warren.patterns.saga.history import SagaHistory, read_history
from warren.patterns.stores.open_by_url import open_store_from_url
from warren.patterns.stores.store import StoreUnavailable
from warren.sdk import ConfigError, TopologyMismatch, WarrenError
from warren.sdk.extend import duration

STREAM = "warren.events"
SECOND = "%Y-%m-%d %H:%M:%S"

trace: typer.Typer = command_group("Print the story of a message, or of a saga, from captured events.")


def main(arguments: Sequence[str]) -> int:
    """Print the story of a message and return 0; 1 if the stream has no event of it.

    :raises UsageError: for wrong arguments, or a stream that does not exist
    """
    try:
        return run_group(trace, "trace", arguments)
    except TopologyMismatch as error:
        hint = "; capture events with App(capture=Capture()) or `warren broker --capture-events`"
        raise UsageError(f"{error}{hint if error.reply_code == 404 else ''}") from None
    except ConfigError as error:
        raise UsageError(str(error)) from None
    except (WarrenError, StoreUnavailable) as error:
        write_error(f"warren trace: {error}")
        return ExitStatus.IO


@trace.command()
def print_story(
    message_id: Annotated[
        str | None, typer.Argument(metavar="[MESSAGE-ID]", help="id of the message")
    ] = None,
    saga: Annotated[
        str | None,
        typer.Option(metavar="NAME/KEY", help="a saga instead, such as checkout/order-42; with --store"),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="WARREN_STORE",
            help="store of the saga: redis://..., postgresql://..., or an SQLite file",
        ),
    ] = None,
    prefix: Annotated[
        str, typer.Option(metavar="TEXT", help="prefix of the store's keys in Redis")
    ] = "warren:",
    stream: Annotated[str, typer.Option(metavar="NAME", help="stream of the captured events")] = STREAM,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="read the events of the last TIME, such as 1h (default: all)"),
    ] = None,
    mermaid_file: Annotated[
        Path | None, typer.Option("--mermaid", metavar="FILE", help="write a Mermaid sequence diagram")
    ] = None,
    html_file: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="write a page with a sequence diagram, which loads nothing"
        ),
    ] = None,
    url: Url = None,
    as_json: Json = False,
) -> int:
    """Print who published a message, where it went, its deliveries, retries and dead-lettering, and the same for the
    messages that caused it or that it caused. The exit status is 1 if the stream has no event of it."""
    if (message_id is None) == (saga is None):
        raise UsageError("give the id of a message, or --saga NAME/KEY")
    address = broker_url(url)
    start = None if since is None else datetime.now(UTC) - duration(since)
    history: SagaHistory | None = None
    if saga is not None:
        history = asyncio.run(_saga(saga, store, prefix))
    wanted = [message_id] if message_id is not None else _messages_of(history)
    report = ReadReport()
    story = asyncio.run(_read(address, stream, start, wanted, report))
    if story is None:
        times = (
            "none" if report.first is None else f"from {report.first:{SECOND}} to {report.last:{SECOND}} UTC"
        )
        from_time = "its beginning" if start is None else f"{start:{SECOND}} UTC"
        what = f"message {message_id}" if message_id is not None else f"the messages of saga {saga}"
        write_error(
            f"warren trace: no event of {what} in stream {stream}, read from {from_time}: {report.events} events, {times}"
        )
        return ExitStatus.FAILED
    if as_json:
        write_json(_as_json(story, history, report))
    else:
        _show(story, history, report)
    title = f"Message {message_id}" if message_id is not None else f"Saga {saga}"
    if mermaid_file is not None:
        _write(mermaid_file, mermaid(story))
    if html_file is not None:
        _write(html_file, html_page(story, title))
    return ExitStatus.SUCCESS


async def _read(
    url: str, stream: str, since: datetime | None, wanted: Sequence[str], report: ReadReport
) -> Story | None:
    """Read the stream twice, so that only the events of the story are held in memory: once for the relations between
    messages, and once for their events. Return None if no event is of one of these messages.
    """
    causes = Causes()
    async for event in read_events(url, stream, since, report):
        causes.add(event)
    if causes.known.isdisjoint(wanted):
        return None
    messages = causes.related(wanted)
    events = read_events(url, stream, since, ReadReport(), until=report.end)
    own: list[CapturedEvent] = [event async for event in events if event.message_id in messages]
    return tell(messages, own)


async def _saga(saga: str, store: str | None, prefix: str) -> SagaHistory:
    name, slash, key = saga.partition("/")
    if not slash or not name or not key:
        raise UsageError(f"--saga {saga}: write NAME/KEY, as in Saga(NAME, ...) and its key")
    if store is None:
        raise UsageError("--saga needs the store of the saga: --store URL, or WARREN_STORE")
    async with open_store_from_url(store, prefix) as opened:
        history = await read_history(opened, name, key, now_ms=int(time.time() * 1000))
    if history is None:
        raise UsageError(
            f"this store has no saga {name} with the key {key!r}: it never started, or was deleted"
        )
    return history


def _messages_of(history: SagaHistory | None) -> list[str]:
    return [] if history is None else list(dict.fromkeys(entry.message_id for entry in history.entries))


def _show(story: Story, history: SagaHistory | None, report: ReadReport) -> None:
    if history is not None:
        write_lines(f"{history}\n")
    for line in timeline(story):
        write_line(line)
    if report.missing:
        write_error(f"the stream lacks {report.missing} events that were captured, so steps may be missing")


def _as_json(story: Story, history: SagaHistory | None, report: ReadReport) -> dict[str, object]:
    return {
        "messages": [{"message_id": each, "cause": cause or None} for each, cause in story.messages.items()],
        "steps": [
            {
                "at": datetime.fromtimestamp(step.at / 1_000_000, UTC).isoformat(),
                "message_id": step.message_id,
                "event": step.name,
                "from": step.source,
                "to": step.target,
                "text": step.text,
            }
            for step in story.steps
        ],
        "saga": None if history is None else history.as_json(),
        "missing_events": report.missing,
    }


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None
