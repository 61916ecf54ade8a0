"""`warren asyncapi MODULE:APP`: describe the messages of an App in an AsyncAPI 3.0 document, and compare two of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from warren.cli.typer_commands import Url, command_group, validated_url
from warren.cli.typer_commands import run_group as run_command
from warren.core.command_output import write_document, write_error, write_json_text, write_lines
from warren.core.errors import ExitStatus, UsageError
from warren.core.text_escapes import json_text

YAML_SUFFIXES: Final = (".yaml", ".yml")

document = command_group("Describe an App in AsyncAPI 3.0.")


def main(arguments: Sequence[str]) -> int:
    """Write the AsyncAPI document that describes the messages of an App. No broker is needed.

    Return 0; 1 if `--diff` finds a breaking change; 2 if a document cannot be read; 74 if the file cannot be written.
    """
    return run_command(document, "asyncapi", arguments)


@document.command()
def asyncapi(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:APP|FILE", help="the App, such as shop.main:app; or a document in JSON or YAML"
        ),
    ],
    title: Annotated[str | None, typer.Option(help="title of the application (default: its module)")] = None,
    version: Annotated[str, typer.Option(help="version of the application")] = "1.0.0",
    description: Annotated[str, typer.Option(help="description of the application")] = "",
    form: Annotated[
        Literal["json", "yaml"] | None,
        typer.Option("--format", help="(default: by the suffix of FILE, else json); yaml needs PyYAML"),
    ] = None,
    diff: Annotated[
        Path | None,
        typer.Option(
            metavar="OLD", help="compare with this document; status 1 if a change breaks other services"
        ),
    ] = None,
    html: Annotated[bool, typer.Option("--html", help="write one HTML page instead, for people")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="(default: standard output)")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the changes of --diff as JSON")] = False,
    url: Url = None,
) -> int:
    """Write an AsyncAPI 3.0 document of the messages that the App handles and those that app.publishes declares: channels
    with AMQP bindings, operations with their replies, and the JSON Schemas of the messages. With --html, write a page; with
    --diff OLD, print what changed since OLD, and which changes break services that read or write the messages."""
    if diff is not None and (html or form is not None):
        raise UsageError("--diff prints changes: leave out --html and --format")
    if as_json and diff is None:
        raise UsageError("--json prints the changes of --diff; a document is JSON by default")
    old = None if diff is None else _read(diff)
    made = _read(Path(target)) if _is_file(target) else _document(target, url, title, version, description)
    if old is not None:
        return _compare(old, made, as_json=as_json, output=output)
    if html or (form is None and output is not None and output.suffix == ".html"):
        from warren.sdk.extend import asyncapi_page

        return _write(asyncapi_page(made), output, write_document)
    yaml = form == "yaml" or (form is None and output is not None and output.suffix in YAML_SUFFIXES)
    if yaml:
        return _write(_yaml(made), output, write_document)
    return _write(json_text(made, indent=2) + "\n", output, _write_json)


def _document(
    target: str, url: str | None, title: str | None, version: str, description: str
) -> dict[str, Any]:
    from warren.cli.import_target import load_object
    from warren.sdk import App
    from warren.sdk.extend import asyncapi_document

    app = load_object(target, App, "an App")
    if url is not None:
        app.use_broker(validated_url(url))
    return asyncapi_document(
        app, title=title or target.partition(":")[0], version=version, description=description
    )


def _compare(old: dict[str, Any], new: dict[str, Any], *, as_json: bool, output: Path | None) -> int:
    from warren.sdk.extend import compare_asyncapi

    try:
        changes = compare_asyncapi(old, new)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if as_json:
        listed = [{"breaks": each.breaks, "place": each.place, "change": each.text} for each in changes]
        text = json_text(
            {"breaking": sum(each.breaks is not None for each in changes), "changes": listed}, indent=2
        )
    else:
        headings = {
            "readers": "Breaking for readers of what the App sends",
            "writers": "Breaking for writers of what the App handles",
            None: "Not breaking",
        }
        parts = []
        for breaks, heading in headings.items():
            lines = [f"  {each.place}: {each.text}" for each in changes if each.breaks == breaks]
            if lines:
                parts.append("\n".join([f"{heading}:", *lines]))
        text = "\n\n".join(parts) or "No changes."
    written = _write(text + "\n", output, _write_json if as_json else _write_changes)
    return written or (
        ExitStatus.FAILED if any(each.breaks is not None for each in changes) else ExitStatus.SUCCESS
    )


def _write_json(text: str) -> None:
    write_json_text(text.rstrip("\n"))


def _write_changes(text: str) -> None:
    write_lines(text.rstrip("\n"))


def _write(text: str, output: Path | None, write: Callable[[str], None]) -> int:
    """Write a text to a file, or with `write` to standard output, and return the exit status."""
    if output is None:
        write(text)
        return ExitStatus.SUCCESS
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        write_error(f"warren asyncapi: cannot write {output}: {error.strerror or error}")
        return ExitStatus.IO
    return ExitStatus.SUCCESS


def _is_file(target: str) -> bool:
    return Path(target).suffix in (".json", *YAML_SUFFIXES)


def _read(path: Path) -> dict[str, Any]:
    """Return the document in a JSON or YAML file.

    :raises UsageError: if it cannot be read, or is no mapping
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    try:
        made = _import_yaml().safe_load(text) if path.suffix in YAML_SUFFIXES else json.loads(text)
    except UsageError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{path} is not a document in {path.suffix[1:] or 'json'}: {reason}") from None
    if not isinstance(made, dict):
        raise UsageError(f"{path} is not an AsyncAPI document")
    return made


def _yaml(made: object) -> str:
    text: str = _import_yaml().safe_dump(made, sort_keys=False, allow_unicode=True)
    return text


def _import_yaml() -> Any:
    try:
        # Imported by name, as it has no type hints.
        return import_module("yaml")
    except ImportError:
        raise UsageError("YAML needs PyYAML: pip install PyYAML, or use JSON") from None
