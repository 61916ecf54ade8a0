"""`warren call`: a request from a command line, and its reply."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from warren.cli.message_body import Body, as_message, read
from warren.cli.typer_commands import Url, broker_url, commands
from warren.cli.typer_commands import run as run_command
from warren.core.errors import ExitStatus, UsageError

if TYPE_CHECKING:
    from warren.sdk import GatherResult, Request, Scatter

asking = commands("Send a request, and print its reply as JSON.")


def main(arguments: Sequence[str]) -> int:
    """Call: 0 with a reply, 1 when the answer is an error or none, 74 without a broker."""
    return run_command(asking, "call", arguments)


@asking.command()
def call(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:REQUEST|QUEUE", help="a Request or Scatter class, as in shop:GetQuote; or a queue"
        ),
    ],
    body: Body = "-",
    timeout: Annotated[
        float, typer.Option(min=0.001, help="seconds for the reply, and for the connection")
    ] = 30.0,
    replies: Annotated[
        int | None, typer.Option(min=1, help="of a Scatter: so many are enough (default: its whole audience)")
    ] = None,
    url: Url = None,
) -> int:
    """Send a request and print its reply as JSON: warren call shop:GetQuote '{"sku": "lamp"}'. The reply is checked against
    the class; what a queue answers is printed as it is. A Scatter prints all replies, and who was silent."""
    where = broker_url(url)
    request = _request(target, read(body))

    async def ask() -> Any:
        from warren.sdk import App, Scatter

        app = App(where, name="warren call", declare="never", connect_timeout=timeout)
        async with app:
            if isinstance(request, Scatter):
                return _gathered(await app.gather(request, timeout=timeout, replies=replies))
            return await app.call(request, timeout=timeout)

    from pydantic_core import to_json

    reply = asyncio.run(ask())
    sys.stdout.write(to_json(reply, indent=2).decode() + "\n")
    silent = isinstance(reply, _Scattered) and reply["silent"] and replies is None
    return ExitStatus.FAILED if silent else ExitStatus.SUCCESS


class _Scattered(dict[str, Any]):
    """What a Scatter prints."""


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
    request: Request[Any] | Scatter[Any] = as_message(kind, body)
    return request


def _untyped(queue: str, body: bytes) -> Request[Any]:
    """A request of any JSON object to a queue, for foreign servers."""
    from pydantic import ConfigDict

    from warren.sdk import Request

    class Untyped(Request[Any], queue=queue):
        model_config = ConfigDict(extra="allow")

    try:
        content = json.loads(body)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise UsageError("the body of a request to a queue is a JSON object; name a request class for others")
    return Untyped(**content)
