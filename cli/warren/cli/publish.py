"""`warren publish`: publish messages and wait for their publisher confirms."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from warren.cli.connecting import connected
from warren.cli.duration_option import positive_seconds
from warren.cli.message_body import Body, guess_content_type, parse_message, read_body
from warren.cli.typer_commands import Json, Url, broker_url, command_group
from warren.cli.typer_commands import run_group as run_command
from warren.core.command_output import write_json, write_line
from warren.core.errors import ExitStatus, UsageError

if TYPE_CHECKING:
    from warren.sdk import Message, Outgoing, PropertyOptions, PublishReport
    from warren.sdk.extend import CallNext

publishing = command_group("Publish messages, and wait until the broker has confirmed them.")


def main(arguments: Sequence[str]) -> int:
    """Publish messages. Return 0 if all are confirmed, 1 if one is returned or nacked, 74 if there is no broker."""
    return run_command(publishing, "publish", arguments)


@publishing.command()
def publish(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:MESSAGE|KEY", help="a message class, such as shop:OrderPlaced; or a routing key"
        ),
    ],
    body: Body = "-",
    exchange: Annotated[
        str | None,
        typer.Option(help="exchange for KEY (default: the default exchange, so KEY is a queue)"),
    ] = None,
    lines: Annotated[bool, typer.Option("--lines", help="each line of the body is a message")] = False,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="header; may be repeated")
    ] = None,
    message_type: Annotated[str | None, typer.Option("--type", help="property `type`")] = None,
    content_type: Annotated[
        str | None, typer.Option(help="(default: application/json if it is JSON, else text or bytes)")
    ] = None,
    content_encoding: Annotated[
        str | None, typer.Option(help="encoding of the body, such as gzip for a compressed file")
    ] = None,
    expiration: Annotated[
        str | None, typer.Option(metavar="DURATION", help="time to live in a queue, such as 5s")
    ] = None,
    priority: Annotated[int | None, typer.Option(help="0 to 255, for a queue with priorities")] = None,
    message_id: Annotated[str | None, typer.Option(help="id of the message (default: a new UUID)")] = None,
    correlation_id: Annotated[str | None, typer.Option(help="id by which a reply is matched")] = None,
    reply_to: Annotated[str | None, typer.Option(metavar="QUEUE", help="queue for replies")] = None,
    timestamp: Annotated[
        str | None, typer.Option(metavar="TIME", help="Unix seconds, or a time such as 2026-02-01T12:00:00Z")
    ] = None,
    user_id: Annotated[str | None, typer.Option(help="name of the connection's user")] = None,
    app_id: Annotated[str | None, typer.Option(help="name of the publishing application")] = None,
    transient: Annotated[bool, typer.Option("--transient", help="delivery mode 1 instead of 2")] = False,
    declare: Annotated[
        bool,
        typer.Option(
            "--declare", help="declare the topology of the message class instead of only checking it"
        ),
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(
            parser=positive_seconds,
            metavar="DURATION",
            help="for each message, and for the connection, such as 5 or 5s",
        ),
    ] = 30.0,
    url: Url = None,
    as_json: Json = False,
) -> int:
    """Publish a message class with a JSON body, or any body to a routing key:
    warren publish shop:OrderPlaced '{"order_id": "42"}'; warren publish order.placed --exchange orders @order.json"""
    address = broker_url(url)
    content = read_body(body)
    bodies = content.splitlines() if lines else [content]
    headers = dict(_header(each) for each in header or [])
    kind = _message_class(target) if ":" in target and exchange is None else None
    if kind is not None:
        messages: list[Any] = [parse_message(kind, each) for each in bodies]
    else:
        messages = bodies
    if message_id is not None and lines:
        raise UsageError("--message-id is the id of one message; leave it out with --lines")
    properties: PropertyOptions = {
        "type": message_type,
        "content_type": content_type,
        "content_encoding": content_encoding,
        "expiration": expiration,
        "priority": priority,
        "correlation_id": correlation_id,
        "reply_to": reply_to,
        "timestamp": None if timestamp is None else _time(timestamp),
        "user_id": user_id,
        "app_id": app_id,
    }
    _check(properties, message_id)

    async def shape(outgoing: Outgoing, call_next: CallNext) -> None:
        if kind is None and content_type is None:
            outgoing.set("content_type", guess_content_type(outgoing.body))
        if message_id is not None:
            outgoing.set("message_id", message_id)
        if transient:
            outgoing.set("delivery_mode", 1)
        await call_next(outgoing)

    async def send() -> PublishReport:
        from warren.sdk import App

        app = App(
            address, name="warren publish", declare="always" if declare else "never", connect_timeout=timeout
        )
        app.middleware(publish=shape)
        async with connected(app, address, timeout):
            return await app.publish_many(
                iter(messages),
                timeout=timeout,
                on_error="report",
                exchange=None if kind is not None else exchange or "",
                key=None if kind is not None else target,
                headers=headers,
                **properties,
            )

    return _print_report(asyncio.run(send()), as_json)


def _print_report(report: PublishReport, as_json: bool) -> int:
    confirmed = report.total - len(report.failures)
    if as_json:
        failed = [{"index": each.index, "error": str(each.error)} for each in report.failures]
        write_json({"confirmed": confirmed, "failed": failed})
        return ExitStatus.FAILED if failed else ExitStatus.SUCCESS
    write_line(f"confirmed: {confirmed}")
    if report.failures:
        first = report.failures[0]
        number = f" (message {first.index + 1} of {report.total})" if report.total > 1 else ""
        raise _Failed(f"{len(report.failures)} not confirmed: {first.error}{number}", first.error.exit_status)
    return ExitStatus.SUCCESS


class _Failed(Exception):
    """Failure of a publish, with the exit status of the command."""

    def __init__(self, text: str, exit_status: int) -> None:
        super().__init__(text)
        self.exit_status = exit_status


def _message_class(target: str) -> type[Message]:
    from warren.cli.import_target import load_class
    from warren.sdk import Message

    return load_class(target, Message, "a message class")


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UsageError(f"{text!r} is not a header; write NAME=VALUE")
    return name, value


def _time(text: str) -> datetime | int:
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{text!r} is no time; write Unix seconds, or 2026-02-01T12:00:00Z") from None


def _check(properties: PropertyOptions, message_id: str | None) -> None:
    """Refuse bad properties before the connection to the broker."""
    from warren.sdk.extend import encode

    encode(b"", now=0.0, key="", message_id=message_id, **properties)
