"""`warren topology plan|apply|export MODULE:APP`: compare, declare or export the topology of an App."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from warren.cli.typer_commands import Json, Url, command_group, run_group, validated_url
from warren.core.command_output import write_error, write_json, write_json_text, write_line
from warren.core.control_client import SOCKET_VARIABLE
from warren.core.errors import ExitStatus, UsageError
from warren.core.text_escapes import json_text

if TYPE_CHECKING:
    from warren.sdk import App
    from warren.sdk.planning import Listing, Plan, Planner, Risk

SUBJECTS = 3
"""Largest number of affected exchanges or queues printed for one risk; `--json` prints all of them."""

topology = command_group(
    "Compare the topology of an App with that of the broker, declare it, or write it to a file."
)

Target = Annotated[str, typer.Argument(metavar="MODULE:APP", help="the App, such as shop.main:app")]
Management = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="RabbitMQ's management API, http://host:15672, to compare bindings, too"
    ),
]
Socket = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        envvar=SOCKET_VARIABLE,
        help="control socket of a Warren broker, to compare bindings, too",
    ),
]


def main(arguments: Sequence[str]) -> int:
    """Run `plan`, `apply` or `export`, and return the exit status: for `plan`, 0 if the broker has everything that the App
    declares, else 1; for the others, 0 if they did their work."""
    return run_group(topology, "topology", arguments)


@topology.command()
def plan(
    target: Target,
    url: Url = None,
    management_url: Management = None,
    control_socket: Socket = None,
    strict: Annotated[bool, typer.Option("--strict", help="exit status 1 for a risk, too")] = False,
    as_json: Json = False,
) -> int:
    """Print missing items, differences argument by argument, risks (a restart, lost messages) and advice. Nothing is
    changed. The exit status is 0 if the broker has everything that is declared, else 1."""
    app, url = _app(target, url)
    listing = _listing(url, management_url, control_socket)

    async def compare(planner: Planner) -> Plan:
        return await planner.plan(app.topology, listing, app.messages)

    found = _with_planner(url, compare)
    if as_json:
        write_json(_as_json(found))
    else:
        _show(found)
    return ExitStatus.SUCCESS if found.stands and not (strict and found.risks) else ExitStatus.FAILED


@topology.command()
def apply(
    target: Target,
    url: Url = None,
    management_url: Management = None,
    control_socket: Socket = None,
    mismatch: Annotated[
        Literal["fail", "adopt"],
        typer.Option(help="fail: declare nothing if an item differs; adopt: leave that item unchanged"),
    ] = "fail",
    as_json: Json = False,
) -> int:
    """Declare missing items. Existing items are never changed or deleted."""
    app, url = _app(target, url)
    listing = _listing(url, management_url, control_socket)

    async def make(planner: Planner) -> list[str]:
        return await planner.apply(await planner.plan(app.topology, listing, app.messages), mismatch=mismatch)

    made = _with_planner(url, make)
    if as_json:
        write_json({"made": made})
    else:
        for name in made:
            write_line(f"declared {name}")
        if not made:
            write_line("nothing to declare: the broker has all items")
    return ExitStatus.SUCCESS


@topology.command()
def export(
    target: Target,
    vhost: Annotated[
        str | None, typer.Option(help="virtual host in the definitions (default: that of the URL, else /)")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="(default: standard output)")
    ] = None,
    url: Url = None,
) -> int:
    """Write RabbitMQ's definitions JSON: `rabbitmqctl import_definitions FILE`, `warren definitions import FILE`. No broker
    is needed."""
    from warren.sdk.planning import definitions
    from warren.wire.amqp_url import parse_url

    app = _load(target)
    url = url or app.url
    if vhost is None:
        vhost = parse_url(validated_url(url)).virtual_host if url else "/"
    left_out = [
        item.name for item in app.topology if getattr(item, "exclusive", False) and hasattr(item, "name")
    ]
    if left_out:
        write_error(f"warren topology: exclusive queues are left out: {', '.join(left_out)}")
    text = json_text(definitions(app.topology, vhost), indent=2)
    if output is None:
        write_json_text(text)
        return ExitStatus.SUCCESS
    try:
        output.write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        write_error(f"warren topology: cannot write {output}: {error.strerror or error}")
        return ExitStatus.IO
    return ExitStatus.SUCCESS


def _load(target: str) -> App:
    from warren.cli.import_target import load_object
    from warren.sdk import App

    return load_object(target, App, "an App")


def _app(target: str, url: str | None) -> tuple[App, str]:
    app = _load(target)
    url = url or app.url
    if url is None:
        raise UsageError("no broker is named; give the App a URL, or use --url or AMQP_URL")
    return app, validated_url(url)


def _listing(url: str, management_url: str | None, control_socket: Path | None) -> Listing | None:
    from warren.sdk.planning import from_control_socket, from_management
    from warren.wire.amqp_url import parse_url

    parts = parse_url(url)
    if management_url is not None:
        return from_management(management_url, parts.virtual_host, parts.user, parts.password)
    if control_socket is not None:
        return from_control_socket(control_socket, parts.virtual_host)
    return None


def _with_planner(url: str, work: Any) -> Any:
    from warren.sdk.planning import Planner

    async def main() -> Any:
        async with Planner(url) as planner:
            return await work(planner)

    return asyncio.run(main())


def _as_json(plan: Plan) -> dict[str, Any]:
    from warren.sdk.planning import label

    return {
        "broker": plan.broker,
        "stands": plan.stands,
        "listed": plan.listed,
        "items": [
            {
                "name": step.name,
                "status": step.status.value,
                "differences": [
                    {"argument": each.argument, "declared": each.declared, "current": each.current}
                    for each in step.differences
                ],
                "advice": step.advice,
            }
            for step in plan.steps
        ],
        "own": {name: role.value for name, role in plan.own.items()},
        "undeclared": [label(item) for item in plan.undeclared],
        "risks": [
            {"kind": each.kind.value, "subject": each.subject, "text": each.text, "advice": each.advice}
            for each in plan.risks
        ],
    }


def _grouped(risks: Iterable[Risk]) -> dict[tuple[str, str], list[str]]:
    """Group risks by (text, advice), and return the names of the affected exchanges and queues for each group.

    The same risk often concerns dozens of exchanges; it is then printed once, with the first few of them.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for each in risks:
        found.setdefault((each.text, each.advice), []).append(each.subject)
    return found


def _show(plan: Plan) -> None:
    from warren.sdk.planning import Kind, Status, label

    marks = {Status.MISSING: ("+", "green"), Status.DIFFERS: ("~", "yellow"), Status.UNKNOWN: ("?", "dim")}
    write_line(f"broker: {plan.broker}")
    unseen = 0
    for step in plan.steps:
        if step.status is Status.PRESENT:
            continue
        if step.status is Status.UNKNOWN and not plan.listed and step.name.startswith("the binding"):
            unseen += 1
            continue
        mark, style = marks[step.status]
        words = {Status.MISSING: "is missing", Status.DIFFERS: "differs", Status.UNKNOWN: "is not known"}
        write_line(f"{mark} {step.name} {words[step.status]}", style=style)
        for each in step.differences:
            write_line(f"    {each}")
        write_line(f"    {step.advice}")
    for name, role in plan.own.items():
        write_line(f"  queue {name!r} is Warren's own: {role.meaning}", style="dim")
    for item in plan.undeclared:
        write_line(f"- {label(item)} exists, but is not declared by the App", style="dim")
    headings = {
        Kind.RESTART: "will not survive a restart",
        Kind.LOSS: "could lose messages",
        Kind.PORTABILITY: "is not the same everywhere",
    }
    for kind, heading in headings.items():
        risks = [each for each in plan.risks if each.kind is kind]
        if risks:
            write_line()
            write_line(f"{heading}:", style="bold")
        for (text, advice), subjects in _grouped(risks).items():
            more = f" and {len(subjects) - SUBJECTS} more" if len(subjects) > SUBJECTS else ""
            write_line(f"! {', '.join(subjects[:SUBJECTS])}{more}: {text}")
            write_line(f"    {advice}")
    counts = {status: len(plan.of(status)) for status in Status}
    summary = (
        f"{counts[Status.PRESENT]} as declared, {counts[Status.MISSING]} missing,"
        f" {counts[Status.DIFFERS]} different, {len(plan.risks)} {'risk' if len(plan.risks) == 1 else 'risks'}"
    )
    if unseen:
        summary += f"; {unseen} bindings not compared (use --management-url or --control-socket)"
    write_line()
    write_line(summary)
