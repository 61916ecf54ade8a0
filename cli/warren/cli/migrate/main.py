"""`warren migrate`: move a running system from Warren's broker to RabbitMQ, or back, without stopping it."""

from __future__ import annotations

import asyncio
import os
import re
from argparse import Namespace
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from warren.broker.shovel.shovel_uri import InvalidUri, parse_uri
from warren.cli.migrate.broker_api import BrokerApi
from warren.cli.migrate.certificate import Certificate
from warren.cli.migrate.migration import Migration, Options, Side
from warren.cli.migrate.plan import Delays, Plan
from warren.cli.migrate.queue_move import MigrationRefused
from warren.cli.migrate.state_folder import StateFolder
from warren.core.argument_parser import CommandParser
from warren.core.command_output import write_error, write_json, write_line
from warren.core.durations import parse_seconds
from warren.core.errors import ExitStatus, UsageError
from warren.core.operating_system.signals import END_SIGNALS, on_signal
from warren.sdk.planning import ListingError, ManagementApi
from warren.wire.amqp_url import parse_url

DESCRIPTION: Final = """Move a virtual host to another broker while its clients run: import definitions, wait for the
consumers of each queue to leave the source, move its messages in order and with confirms, and end with a certificate when
the source is empty and no client is connected to it. After a kill, the same command goes on."""
SOURCE_VARIABLE: Final = "WARREN_MIGRATE_SOURCE"
TARGET_VARIABLE: Final = "WARREN_MIGRATE_TARGET"
LARGEST_WINDOW: Final = 10_000


def main(arguments: Sequence[str]) -> int:
    """Migrate. Return 0 if the certificate holds, 1 if it does not or something cannot be moved, 130 after an interrupt.

    :raises UsageError: if an option or a URL is wrong
    """
    words = _parser().parse_args(arguments)
    source = _side("--source", words.source, words.source_management_url)
    target = _side("--target", words.target, words.target_management_url)
    if (source.uri.host, source.uri.port, source.uri.virtual_host) == (
        target.uri.host,
        target.uri.port,
        target.uri.virtual_host,
    ):
        raise UsageError("source and target are the same virtual host of the same broker")
    options = _options(words)
    try:
        return asyncio.run(_run(source, target, options, words))
    except ListingError as error:
        write_error(f"warren migrate: {error}")
        return ExitStatus.IO
    except MigrationRefused as refused:
        write_error(f"warren migrate: {refused}")
        return ExitStatus.FAILED


async def _run(source: Side, target: Side, options: Options, words: Namespace) -> int:
    migration = Migration(source, target, options, write_error)
    plan = await asyncio.to_thread(migration.plan)
    if words.dry_run:
        return _show(plan, words.json)
    if plan.problems:
        for problem in plan.problems:
            write_error(f"warren migrate: cannot move {problem}")
        return ExitStatus.FAILED
    now = datetime.now(UTC).isoformat(timespec="seconds")
    folder = StateFolder(words.state, source.shown, target.shown, now)
    loop = asyncio.get_running_loop()
    for number in END_SIGNALS:
        on_signal(loop, number, migration.stop)
    try:
        certificate = await migration.run(folder)
    finally:
        folder.close()
    if certificate is None:
        write_error("interrupted; the same command goes on")
        return ExitStatus.INTERRUPTED
    _write(certificate, words.state)
    if words.json:
        write_json(certificate.as_dict())
    else:
        _write_lines(certificate.lines())
    return ExitStatus.SUCCESS if certificate.holds else ExitStatus.FAILED


def _show(plan: Plan, as_json: bool) -> int:
    if as_json:
        write_json(plan.as_json())
    else:
        _write_lines(plan.lines())
    return ExitStatus.FAILED if plan.problems else ExitStatus.SUCCESS


def _write_lines(lines: Iterable[str]) -> None:
    for line in lines:
        write_line(line)


def _write(certificate: Certificate, folder: Path) -> None:
    (folder / "certificate.json").write_text(certificate.as_json(), encoding="utf-8")
    (folder / "certificate.txt").write_text("\n".join(certificate.lines()) + "\n", encoding="utf-8")


def _side(option: str, url: str | None, management_url: str | None) -> Side:
    if not url:
        variable = SOURCE_VARIABLE if option == "--source" else TARGET_VARIABLE
        raise UsageError(f"{option} is missing: give the AMQP URL of the broker, also as {variable}")
    try:
        parts = parse_url(url)
        uri = parse_uri(url)
    except InvalidUri:
        raise UsageError(f"{option}: not an AMQP URL: a parameter after the ? is not valid") from None
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None
    host = f"[{parts.host}]" if ":" in parts.host else parts.host
    try:
        api = ManagementApi(management_url or f"http://{host}:15672", parts.user, parts.password)
    except ListingError as error:
        raise UsageError(f"{option[:8]}-management-url: {error}") from None
    return Side(uri, parts.masked, BrokerApi(api, parts.virtual_host))


def _options(words: Namespace) -> Options:
    if not 1 <= words.window <= LARGEST_WINDOW:
        raise UsageError(f"--window {words.window}: it must be from 1 to {LARGEST_WINDOW}")
    return Options(
        _pattern("--queues", words.queues),
        None if words.exclude is None else _pattern("--exclude", words.exclude),
        None if words.delays is None else Delays(words.delays),
        words.window,
        _seconds("--interval", words.interval),
        _seconds("--patience", words.patience),
        words.until_empty,
    )


def _pattern(option: str, text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(f"{option} {text!r} is no regular expression: {error}") from None


def _seconds(option: str, text: str) -> float:
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


def _parser() -> CommandParser:
    parser = CommandParser("warren migrate", DESCRIPTION)
    add = parser.add_argument
    environment = os.environ.get
    add(
        "--source",
        metavar="URL",
        default=environment(SOURCE_VARIABLE),
        help=f"AMQP URL of the broker to move from, with its virtual host (default: ${SOURCE_VARIABLE})",
    )
    add(
        "--target",
        metavar="URL",
        default=environment(TARGET_VARIABLE),
        help=f"AMQP URL of the broker to move to (default: ${TARGET_VARIABLE})",
    )
    for side in ("source", "target"):
        add(
            f"--{side}-management-url",
            metavar="URL",
            help=f"HTTP API of the {side} (default: port 15672 of its host, with its user)",
        )
    add("--dry-run", action="store_true", help="print what would be moved and what cannot be; change nothing")
    add(
        "--state",
        metavar="DIR",
        type=Path,
        default=Path("warren-migration"),
        help="folder of the state, by which the migration goes on after a kill (default: %(default)s)",
    )
    add("--queues", metavar="REGEX", default=".*", help="move queues with such a name only (all)")
    add("--exclude", metavar="REGEX", help="do not move the messages of queues with such a name")
    add(
        "--delays",
        choices=[each.value for each in Delays],
        help="queues in which messages wait for their TTL: move them, or wait until they are empty"
        " (default: move from Warren, wait on RabbitMQ)",
    )
    add(
        "--window",
        type=int,
        default=200,
        metavar="N",
        help="most messages of a queue that wait for a confirm (%(default)s)",
    )
    add(
        "--until-empty",
        action="store_true",
        help="end as soon as the queues are empty, even if clients are connected to the source",
    )
    add("--interval", default="1s", metavar="TIME", help="time between two looks at the source (%(default)s)")
    add(
        "--patience",
        default="5m",
        metavar="TIME",
        help="time without a connection to one of the brokers after which it gives up (%(default)s)",
    )
    add("--json", action="store_true", help="print the plan or the certificate as JSON")
    return parser
