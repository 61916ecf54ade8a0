"""`warren doctor [MODULE:APP]`: find what is wrong with a broker, and with an App on it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from warren.cli.doctor import client_checks, exchange_checks, queue_checks
from warren.cli.doctor.app_checks import APP_CHECKS, compare, forgotten
from warren.cli.doctor.finding import CHECKS, Check, Finding, Severity, Source
from warren.cli.doctor.readers import AmqpReader, ControlReader, ManagementReader, Reader
from warren.cli.doctor.snapshot import Samples
from warren.cli.import_target import load_object
from warren.cli.typer_commands import (
    Json,
    Url,
    broker_url,
    command_group,
    run_group,
    validated_url,
)
from warren.core.command_output import write_error, write_json, write_line
from warren.core.control_client import SOCKET_VARIABLE, ControlError, send_request, socket_path
from warren.core.errors import ExitStatus, UsageError
from warren.core.text_escapes import escape_value
from warren.sdk import App, Queue, WarrenError
from warren.sdk.extend import Session, duration
from warren.sdk.planning import ManagementApi, Planner, from_control_socket, from_management
from warren.wire.amqp_url import parse_url

CHECK_MODULES = (queue_checks, exchange_checks, client_checks)
SNAPSHOTS = 3
"""Number of snapshots that `--watch` takes, so that one burst does not look like growth."""
STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}

doctor: typer.Typer = command_group("Find what is wrong with a broker, and with an App on it.")


class FailOn(Enum):
    """Least severity for exit status 1."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"
    NEVER = "never"


def main(arguments: Sequence[str]) -> int:
    """Check a broker and return 0, 1 if there are findings of the severity of `--fail-on`, or 2 for wrong use.

    :raises UsageError: for wrong arguments, or if the broker shows too little for a check
    """
    try:
        return run_group(doctor, "doctor", arguments)
    except WarrenError as error:
        write_error(f"warren doctor: {error}")
        return ExitStatus.IO


@doctor.command()
def examine(
    target: Annotated[
        str | None, typer.Argument(metavar="[MODULE:APP]", help="compare this App with the broker, too")
    ] = None,
    url: Url = None,
    management_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="RabbitMQ's management API, http://host:15672; its user needs the tag monitoring",
        ),
    ] = None,
    control_socket: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            envvar=SOCKET_VARIABLE,
            help="control socket of a Warren broker (default: that of the default data folder, if it is this broker)",
        ),
    ] = None,
    watch: Annotated[
        str, typer.Option(metavar="TIME", help="take three snapshots in this time; 0s for one")
    ] = "10s",
    fail_on: Annotated[
        FailOn, typer.Option("--fail-on", help="least severity for exit status 1")
    ] = FailOn.ERROR,
    ignore: Annotated[
        list[str] | None, typer.Option("--ignore", metavar="CODE", help="leave out a check; may be repeated")
    ] = None,
    as_json: Json = False,
) -> int:
    """Print what is wrong, since when if that is known, and what to do. Nothing is changed."""
    app = None if target is None else load_object(target, App, "an App")
    own = app.url if app is not None else None
    address = broker_url(url) if own is None or url else validated_url(own)
    ignored = _known_codes(ignore or [])
    seconds = duration(watch).total_seconds()
    found, skipped, broker = asyncio.run(_examine(address, app, management_url, control_socket, seconds))
    found = [each for each in found if each.code not in ignored]
    found.sort(key=lambda each: (-each.severity, each.code, each.subject))
    if as_json:
        write_json(
            {
                "broker": broker,
                "findings": [each.as_dict() for each in found],
                "not_checked": {each.code: [source.value for source in each.sources] for each in skipped},
            }
        )
    else:
        _show(found, skipped, broker)
    if fail_on is FailOn.NEVER:
        return ExitStatus.SUCCESS
    least = Severity[fail_on.name]
    return ExitStatus.FAILED if any(each.severity >= least for each in found) else ExitStatus.SUCCESS


async def _examine(
    url: str, app: App | None, management_url: str | None, control_socket: Path | None, seconds: float
) -> tuple[list[Finding], list[Check], str]:
    """Return (findings, checks that could not run, product and version of the broker)."""
    session = await Session.open(url, "warren doctor", lambda reason: None)
    product, version = session.server
    await session.close()
    broker = f"{product} {version}"
    parts = parse_url(url)
    if management_url is None and control_socket is None and product == "Warren":
        control_socket = _own_socket(parts.port)
    reader: Reader
    if management_url is not None:
        api = ManagementApi(management_url, parts.user, parts.password)
        reader = ManagementReader(api, parts.virtual_host, broker)
    elif control_socket is not None:
        reader = ControlReader(control_socket, parts.virtual_host, broker)
    elif app is not None:
        reader = AmqpReader(url, _queues_of(app), broker)
    else:
        option = "--control-socket PATH" if product == "Warren" else "--management-url http://HOST:15672"
        raise UsageError(
            f"AMQP cannot list the queues of {broker}; give {option}, or MODULE:APP to check its queues"
        )
    samples = await _sample(reader, seconds)
    found: list[Finding] = []
    skipped: list[Check] = []
    sources = samples.last.sources | ({Source.GROWTH} if len(samples.all) > 1 else set())
    for check in CHECKS:
        if sources.issuperset(check.sources):
            found += check.run(samples)
        else:
            skipped.append(check)
    if app is not None:
        listing = None
        if management_url is not None:
            listing = from_management(management_url, parts.virtual_host, parts.user, parts.password)
        elif control_socket is not None:
            listing = from_control_socket(control_socket, parts.virtual_host)
        async with Planner(url) as planner:
            found += compare(await planner.plan(app.topology, listing, app.messages))
        found += forgotten()
    return found, skipped, broker


async def _sample(reader: Reader, seconds: float) -> Samples:
    """Take snapshots at equal intervals within `seconds`; only one if that is 0."""
    snapshots = [await reader.read()]
    if seconds > 0:
        for _ in range(SNAPSHOTS - 1):
            await asyncio.sleep(seconds / (SNAPSHOTS - 1))
            snapshots.append(await reader.read())
    return Samples(snapshots)


def _own_socket(port: int) -> Path | None:
    """Return the control socket that `warren ctl` would use, if the broker behind it listens on this port."""
    try:
        path = socket_path(None, None)
        listeners = send_request(path, "listeners", {}, 5.0)["rows"]
    except ControlError:
        return None
    return path if any(str(address).endswith(f":{port}") for _, address in listeners) else None


def _queues_of(app: App) -> list[Queue]:
    """Return the queues that an App declares, with their dead letter queues, but for exclusive ones."""
    queues = [item for item in app.topology if isinstance(item, Queue) and not item.exclusive]
    return [*(dead for queue in queues if (dead := queue.dead_letter_queue)), *queues]


def _known_codes(codes: Sequence[str]) -> set[str]:
    known = {each.code for each in (*CHECKS, *APP_CHECKS)}
    for code in codes:
        if code.upper() not in known:
            raise UsageError(
                f"--ignore {code}: there is no such check; the codes are {', '.join(sorted(known))}"
            )
    return {code.upper() for code in codes}


def _show(found: Sequence[Finding], skipped: Sequence[Check], broker: str) -> None:
    write_line(f"broker: {broker}")
    for each in found:
        write_line(
            f"{each.code} {each.name}  {escape_value(each.short_subject)}", style=STYLES[each.severity]
        )
        since = "" if each.since is None else f" (since {each.since:%Y-%m-%d %H:%M:%S} UTC)"
        write_line(f"    {each.evidence}{since}")
        write_line(f"    {each.advice}")
        write_line(f"    see {each.link}", style="dim")
    counts = [
        f"{sum(each.severity is severity for each in found)} {severity.label}"
        for severity in reversed(Severity)
    ]
    write_line(f"{', '.join(counts)}; {len(CHECKS) - len(skipped)} of {len(CHECKS)} checks of the broker ran")
    if skipped:
        write_line(
            f"not checked, for lack of data: {', '.join(f'{each.code} {each.name}' for each in skipped)}",
            style="dim",
        )
