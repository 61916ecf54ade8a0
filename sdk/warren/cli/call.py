"""`warren call`: a request from a command line, and its reply."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from warren.cli.bodies import Body, as_message, read
from warren.command import Exit, UsageError
from warren.command.typed import Url, broker_url, commands
from warren.command.typed import run as run_command

if TYPE_CHECKING:
    from warren.sdk import Request

asking = commands("Send a request, and print its reply as JSON.")


def main(arguments: Sequence[str]) -> int:
    """Call: 0 with a reply, 1 when the answer is an error or none, 74 without a broker."""
    return run_command(asking, "call", arguments)


@asking.command()
def call(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:REQUEST|QUEUE", help="a request class, as in shop:GetQuote; or a queue"
        ),
    ],
    body: Body = "-",
    timeout: Annotated[
        float, typer.Option(min=0.001, help="seconds for the reply, and for the connection")
    ] = 30.0,
    url: Url = None,
) -> int:
    """Send a request and print its reply as JSON: warren call shop:GetQuote '{"sku": "lamp"}'. The reply is checked against
    the class; what a queue answers is printed as it is."""
    where = broker_url(url)
    request = _request(target, read(body))

    async def ask() -> Any:
        from warren.sdk import App

        app = App(where, name="warren call", declare="never", connect_timeout=timeout)
        async with app:
            return await app.call(request, timeout=timeout)

    from pydantic_core import to_json

    reply = asyncio.run(ask())
    sys.stdout.write(to_json(reply, indent=2).decode() + "\n")
    return Exit.DONE


def _request(target: str, body: bytes) -> Request[Any]:
    from warren.command.target import load_class
    from warren.sdk import Request

    if ":" in target:
        kind: type[Request[Any]] = load_class(target, Request, "a request class")
        return as_message(kind, body)
    return _untyped(target, body)


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
