"""`warren asyncapi MODULE:APP`: describe the messages of an App in an AsyncAPI 3.0 document."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal

import typer

from warren.cli.typer_commands import Url, command_group, validated_url
from warren.cli.typer_commands import run_group as run_command
from warren.core.errors import ExitStatus, UsageError

document = command_group("Describe an App in AsyncAPI 3.0.")


def main(arguments: Sequence[str]) -> int:
    """Write the AsyncAPI document that describes the messages of an App. No broker is needed.

    Return 0, or 74 if the file cannot be written.
    """
    return run_command(document, "asyncapi", arguments)


@document.command()
def asyncapi(
    target: Annotated[str, typer.Argument(metavar="MODULE:APP", help="the App, such as shop.main:app")],
    title: Annotated[str | None, typer.Option(help="title of the application (default: its module)")] = None,
    version: Annotated[str, typer.Option(help="version of the application")] = "1.0.0",
    description: Annotated[str, typer.Option(help="description of the application")] = "",
    form: Annotated[
        Literal["json", "yaml"] | None,
        typer.Option("--format", help="(default: by the suffix of FILE, else json); yaml needs PyYAML"),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="(default: standard output)")
    ] = None,
    url: Url = None,
) -> int:
    """Write an AsyncAPI 3.0 document of the messages that the App handles and those that app.publishes declares: channels
    with AMQP bindings, operations with their replies, and the JSON Schemas of the messages."""
    from warren.cli.import_target import load_object
    from warren.sdk import App
    from warren.sdk.extend import asyncapi_document

    app = load_object(target, App, "an App")
    if url is not None:
        app.use_broker(validated_url(url))
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
        # Imported by name, as it has no type hints.
        yaml = import_module("yaml")
    except ImportError:
        raise UsageError("YAML needs PyYAML: pip install PyYAML, or --format json") from None
    text: str = yaml.safe_dump(made, sort_keys=False, allow_unicode=True)
    return text
