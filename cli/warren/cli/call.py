"""`warren call`: send a request and print its reply."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from warren.cli.connecting import connected
from warren.cli.duration_option import positive_seconds
from warren.cli.message_body import Body, parse_message, read_body
from warren.cli.typer_commands import Url, broker_url, command_group
from warren.cli.typer_commands import run_group as run_command
from warren.core.command_output import write_json_text
from warren.core.errors import ExitStatus, UsageError

if TYPE_CHECKING:
    from warren.sdk import GatherResult, Outgoing, Request, Scatter

calling = command_group("Send a request, and print its reply as JSON.")


def main(arguments: Sequence[str]) -> int:
    """Send a request. Return 0 with a reply, 1 if the reply is an error or missing, 74 if there is no broker."""
    return run_command(calling, "call", arguments)


@calling.command()
def call(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:REQUEST|QUEUE",
            help="a Request or Scatter class, such as shop:GetQuote; or a queue",
        ),
    ],
    body: Body = "-",
    timeout: Annotated[
        float,
        typer.Option(
            parser=positive_seconds,
            metavar="DURATION",
            help="for the reply, and for the connection, such as 5 or 5s",
        ),
    ] = 30.0,
    replies: Annotated[
        int | None,
        typer.Option(min=1, help="replies that are enough for a Scatter (default: one of each member)"),
    ] = None,
    url: Url = None,
) -> int:
    """Send a request and print its reply as JSON: warren call shop:GetQuote '{"sku": "lamp"}'. The reply is checked against
    the class; that of a queue is printed unchanged. A Scatter prints all replies, and the queues without one."""
    address = broker_url(url)
    request = _request(target, read_body(body))

    async def send() -> Any:
        from warren.sdk import App, Scatter

        app = App(address, name="warren call", declare="never", connect_timeout=timeout)
        if ":" not in target:
            # The class of the request exists here only: a server takes a message without a type, not one of a foreign type.
            app.middleware(publish=_remove_type)
        async with connected(app, address, timeout):
            if isinstance(request, Scatter):
                return _gathered(await app.gather(request, timeout=timeout, replies=replies))
            return await app.call(request, timeout=timeout)

    from pydantic_core import to_json

    reply = asyncio.run(send())
    write_json_text(to_json(reply, indent=2, inf_nan_mode="strings").decode())
    silent = isinstance(reply, _Scattered) and reply["silent"] and replies is None
    return ExitStatus.FAILED if silent else ExitStatus.SUCCESS


async def _remove_type(outgoing: Outgoing, call_next: Callable[[Outgoing], Awaitable[None]]) -> None:
    outgoing.set("type", None)
    await call_next(outgoing)


class _Scattered(dict[str, Any]):
    """Output of `warren call` for a Scatter, a request to all bound queues: replies, and queues that sent none."""


def _gathered(gathered: GatherResult[Any]) -> _Scattered:
    return _Scattered(
        replies=[
            {"queue": each.queue, "value": each.value}
            if each.error is None
            else {"queue": each.queue, "error": {"code": each.error.code, "message": each.error.message}}
            for each in gathered.replies
        ],
        silent=sorted(gathered.silent),
    )


def _request(target: str, body: bytes) -> Request[Any] | Scatter[Any]:
    from warren.cli.import_target import load_class
    from warren.sdk.extend import RequestMessage

    if ":" not in target:
        return _untyped(target, body)
    kind: type[Any] = load_class(target, RequestMessage, "a request class")
    request: Request[Any] | Scatter[Any] = parse_message(kind, body)
    return request


def _untyped(queue: str, body: bytes) -> Request[Any]:
    """Return a request to a queue without a message class; its body is sent unchanged.

    :param body: JSON object, encoded
    :raises UsageError: if the body is no JSON object
    """
    from pydantic import ConfigDict

    from warren.sdk import Request

    class Untyped(Request[Any], queue=queue):
        model_config = ConfigDict(extra="allow")

    try:
        content = json.loads(body)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise UsageError(
            "the body of a request to a queue must be a JSON object; for another body, name a request class"
        )
    return Untyped(**content)
