"""`warren asyncapi MODULE:APP`: what an App sends and receives, as an AsyncAPI 3.0 document."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal

import typer

from warren.cli.typer_commands import Url, checked_url, commands
from warren.cli.typer_commands import run as run_command
from warren.core.errors import ExitStatus, UsageError

document = commands("Describe an App in AsyncAPI 3.0.")


def main(arguments: Sequence[str]) -> int:
    """Write the document; no broker is asked."""
    return run_command(document, "asyncapi", arguments)


@document.command()
def asyncapi(
    target: Annotated[str, typer.Argument(metavar="MODULE:APP", help="the App, as in shop.main:app")],
    title: Annotated[str | None, typer.Option(help="of the application (default: its module)")] = None,
    version: Annotated[str, typer.Option(help="of the application")] = "1.0.0",
    description: Annotated[str, typer.Option(help="of the application")] = "",
    form: Annotated[
        Literal["json", "yaml"] | None,
        typer.Option("--format", help="(default: as the file's name ends, else json); yaml needs PyYAML"),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="(default: standard output)")
    ] = None,
    url: Url = None,
) -> int:
    """Write an AsyncAPI 3.0 document of what the App handles and what app.publishes names: channels with AMQP bindings,
    operations with their replies, and the JSON Schemas of the messages."""
    from warren.cli.import_target import load
    from warren.sdk import App
    from warren.sdk.extend import asyncapi_document

    app = load(target, App, "an App")
    if url is not None:
        app.use_broker(checked_url(url))
    made = asyncapi_document(
        app, title=title or target.partition(":")[0], version=version, description=description
    )
    yaml = form == "yaml" or (form is None and output is not None and output.suffix in (".yaml", ".yml"))
    text = _yaml(made) if yaml else json.dumps(made, indent=2, ensure_ascii=False) + "\n"
    if output is None:
        sys.stdout.write(text)
        return ExitStatus.SUCCESS
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        print(f"warren asyncapi: cannot write {output}: {error.strerror or error}", file=sys.stderr)
        return ExitStatus.IO
    return ExitStatus.SUCCESS


def _yaml(made: object) -> str:
    try:
        # By its name, as it has no types.
        yaml = import_module("yaml")
    except ImportError:
        raise UsageError("YAML needs PyYAML: pip install PyYAML, or --format json") from None
    text: str = yaml.safe_dump(made, sort_keys=False, allow_unicode=True)
    return text
