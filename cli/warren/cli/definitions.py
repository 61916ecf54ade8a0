"""`warren definitions export|import FILE`: export or import the definitions of a broker."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from warren.cli.standard_streams import read_bytes
from warren.core.command_output import write_lines
from warren.core.control_client import ControlError
from warren.core.errors import ExitStatus, UsageError
from warren.core.text_escapes import json_text

USAGE: Final = """usage: warren definitions export|import FILE [--data-dir DIR | --socket PATH]

Export users, virtual hosts, permissions, policies, queues, exchanges and bindings of a running broker, as RabbitMQ's JSON.
Import them into a running broker: existing queues and exchanges stay unchanged, and an invalid file changes nothing.
FILE may be -, for standard output or input."""


def main(arguments: Sequence[str]) -> int:
    """Export or import definitions, as `warren ctl export_definitions` and `import_definitions` do.

    Return the exit status of that command.
    """
    # Imported here because the module of `warren ctl` imports this one.
    from warren.cli.ctl.main import main as ctl

    line = list(arguments)
    if not line or {"-h", "--help"} & set(line):
        write_lines(USAGE)
        return ExitStatus.SUCCESS if line else ExitStatus.USAGE
    at = next((index for index, word in enumerate(line) if word in ("export", "import")), None)
    if at is None:
        raise UsageError(f"write `export FILE` or `import FILE`, not {' '.join(line)!r}")
    return ctl([*line[:at], f"{line[at]}_definitions", *line[at + 1 :]])


def complete(before: Sequence[str], last: str) -> Sequence[str]:
    """Return the candidates for `warren completion`: `export` and `import`, until one of them has been typed.

    :param before: complete words after `warren definitions`
    :param last: beginning of the last word; unused, because the caller selects the candidates that begin with it
    """
    return [] if set(before) & {"export", "import"} else ["export", "import"]


def read_file(name: str) -> Any:
    """Read definitions, and return the JSON value that they contain.

    :param name: path of the file; `-` for standard input
    :raises ControlError: if the file cannot be read, or is not JSON in UTF-8
    """
    try:
        content = read_bytes() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise ControlError(f"cannot read {name}: {error.strerror or error}", ExitStatus.IO) from None
    try:
        return json.loads(content.decode())
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ControlError(
            f"{name} is not UTF-8 (line {line}, byte {error.start + 1})", ExitStatus.USAGE
        ) from None
    except (ValueError, RecursionError) as error:
        raise ControlError(f"{name} is not JSON: {error}", ExitStatus.USAGE) from None


def write_file(name: str, definitions: Any) -> None:
    """Write definitions as JSON to a file that only its owner may read, as it contains password hashes.

    :param name: path of the file; `-` for standard output
    :raises ControlError: if the file cannot be written
    """
    text = json_text(definitions, indent=2, ascii_only=True)
    if name == "-":
        write_lines(text)
        return
    try:
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    except OSError as error:
        raise ControlError(f"cannot write {name}: {error.strerror or error}", ExitStatus.IO) from None
