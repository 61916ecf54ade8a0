"""`warren ctl VERB ...`: manage a running broker with rabbitmqctl's verbs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from warren.cli import definitions
from warren.cli.ctl.output_formats import format_result
from warren.cli.ctl.verb_arguments import CommandLine, parse_command_line
from warren.cli.ctl.verbs import DEFAULTS, LOCAL_VERBS, VERBS
from warren.cli.standard_streams import read_line
from warren.core.command_output import input_is_terminal, write_error, write_lines
from warren.core.control_client import ControlError, send_request, socket_path
from warren.core.errors import ExitStatus, UsageError
from warren.core.text_escapes import escape_value


def main(arguments: Sequence[str]) -> int:
    """Perform one verb. Return 0 on success, 2 if the request is wrong, 74 if the broker cannot be reached."""
    words = parse_command_line(arguments)
    if words.verb in ("", "help") or words.general.get("help"):
        write_lines(overview(str(words.arguments.get("verb") or words.verb)))
        return ExitStatus.SUCCESS if words.verb or words.general.get("help") else ExitStatus.USAGE
    if words.verb not in VERBS:
        raise UsageError(unknown_verb(words.verb))
    try:
        perform(words)
    except ControlError as failed:
        write_error(f"warren ctl: {failed}")
        return failed.status
    return ExitStatus.SUCCESS


def complete(before: Sequence[str], last: str) -> Sequence[str]:
    """Return the candidates for `warren completion`: the verbs, until one has been typed.

    :param before: complete words after `warren ctl`
    :param last: beginning of the last word; unused, because the caller selects the candidates that begin with it
    """
    return [] if any(word in VERBS for word in before) else sorted([*VERBS, "help"])


def perform(words: CommandLine) -> None:
    """Run one verb: print the line that announces it, send the request to the broker, and print the result.

    The verbs about encrypted values need no broker.

    :param words: the parsed command line
    :raises ControlError: if the broker refuses the request or cannot be reached
    """
    general = words.general
    silent = bool(general.get("silent"))
    verbose = not (silent or general.get("quiet")) and words.formatter in ("table", "pretty_table")
    if words.verb in LOCAL_VERBS:
        from warren.cli.ctl.encrypted_values import perform_locally

        print_line(announcement(words) if verbose else "")
        write_lines(perform_locally(words.verb, words.arguments))
        return
    path = socket_path(general.get("socket"), general.get("data-dir"))
    if verbose:
        print_line(announcement(words))
    if "password?" in VERBS[words.verb].takes and "password" not in words.arguments:
        words.arguments["password"] = read_password()
    file = words.arguments.pop("file", None)
    if words.verb == "import_definitions":
        words.arguments["definitions"] = definitions.read_file(file or "-")
    if words.verb in ("await_startup", "wait"):
        await_startup(path, words.timeout)
    result = send_request(path, words.verb, words.arguments, words.timeout)
    if words.verb == "export_definitions":
        definitions.write_file(file or "-", result)
        return
    headers = not (silent or general.get("no-table-headers"))
    for line in format_result(result, words.formatter, headers):
        write_lines(line)
    if verbose:
        print_line(VERBS[words.verb].done)


def await_startup(path: Path, timeout: float) -> None:
    """Wait until the broker answers over its control socket that it has started.

    :raises ControlError: if it does not answer within `timeout` seconds; 0 is no limit
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            send_request(path, "await_startup", {}, timeout)
        except ControlError:
            if timeout and time.monotonic() >= deadline:
                raise
            time.sleep(0.1)
        else:
            return


def print_line(text: str) -> None:
    if text:
        write_lines(text, flush=True)


def announcement(words: CommandLine) -> str:
    """Return the line that is printed before a verb is performed, such as `Listing queues ...`.

    It is empty if the verb writes definitions to standard output, which have to stay valid JSON.
    """
    if "file?" in VERBS[words.verb].takes and words.arguments.get("file", "-") == "-":
        return ""
    values: dict[str, Any] = {**DEFAULTS, **words.arguments, "timeout": words.timeout}
    values = {name: ", ".join(value) if isinstance(value, list) else value for name, value in values.items()}
    values = {
        name: escape_value(value) if isinstance(value, str) else value for name, value in values.items()
    }
    return VERBS[words.verb].announce.format_map(values)


def read_password() -> str:
    """Read a password from the terminal without echo, or from standard input."""
    if input_is_terminal():
        from getpass import getpass

        return getpass()
    return read_line("password") or ""


def unknown_verb(name: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, VERBS, 1)
    if close:
        return f"there is no verb {name!r}; did you mean {close[0]}?"
    return f"there is no verb {name!r}; `warren ctl help` lists them"


def overview(name: str) -> str:
    """Return the help text of the verb `name`, or the list of all verbs if there is no such verb."""
    if name in VERBS:
        return f"usage: warren ctl {name} {VERBS[name].usage}".rstrip() + f"\n\n{VERBS[name].summary}"
    width = max(map(len, VERBS))
    return "\n".join(
        [
            "usage: warren ctl [--data-dir DIR | --socket PATH] VERB [ARGUMENT ...]",
            "",
            "The verbs and their syntax are those of rabbitmqctl:",
            *(f"  {verb:<{width}}  {VERBS[verb].summary}" for verb in VERBS),
            "",
            "Options of all verbs: -p VHOST, -q (no announcement), -s (no headers either), --no-table-headers,",
            "--formatter table|json|csv|pretty_table, --json, -t SECONDS. `warren ctl help VERB` describes a verb.",
        ]
    )
