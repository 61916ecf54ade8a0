"""`warren ctl VERB ...`: has a running broker perform a verb, and prints what it says."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from warren.cli import definitions
from warren.cli.ctl.output_formats import lines
from warren.cli.ctl.verb_arguments import Words, parse
from warren.cli.ctl.verbs import DEFAULTS, VERBS
from warren.core.control_client import ControlError, send_request, socket_path
from warren.core.errors import ExitStatus, UsageError


def main(arguments: Sequence[str]) -> int:
    """Perform one verb: 0 when it is done, 2 if the request is at fault, 74 if the broker cannot be reached."""
    words = parse(arguments)
    if words.verb in ("", "help") or words.general.get("help"):
        print(overview(str(words.arguments.get("verb") or words.verb)))
        return ExitStatus.SUCCESS if words.verb or words.general.get("help") else ExitStatus.USAGE
    if words.verb not in VERBS:
        raise UsageError(unknown_verb(words.verb))
    try:
        perform(words)
    except ControlError as failed:
        print(f"warren ctl: {failed}", file=sys.stderr)
        return failed.status
    return ExitStatus.SUCCESS


def complete(before: Sequence[str], last: str) -> Sequence[str]:
    """What `warren completion` offers: the verbs, until there is one."""
    return [] if any(word in VERBS for word in before) else sorted([*VERBS, "help"])


def perform(words: Words) -> None:
    """Announce the verb, have it done, print its result.

    :raises ControlError: if the broker refuses it or cannot be reached.
    """
    general = words.general
    path = socket_path(general.get("socket"), general.get("data-dir"))
    silent = bool(general.get("silent"))
    talks = not (silent or general.get("quiet")) and words.formatter in ("table", "pretty_table")
    if talks:
        say(announced(words))
    if "password?" in VERBS[words.verb].takes and "password" not in words.arguments:
        words.arguments["password"] = password()
    file = words.arguments.pop("file", None)
    if words.verb == "import_definitions":
        words.arguments["definitions"] = definitions.read(file or "-")
    if words.verb == "await_startup":
        wait(path, words.timeout)
    result = send_request(path, words.verb, words.arguments, words.timeout)
    if words.verb == "export_definitions":
        definitions.write(file or "-", result)
        return
    headers = not (silent or general.get("no-table-headers"))
    sys.stdout.writelines(f"{line}\n" for line in lines(result, words.formatter, headers))
    if talks:
        say(VERBS[words.verb].done)


def wait(path: Path, timeout: float) -> None:
    """Until the broker answers.

    :raises ControlError: if it does not within `timeout` seconds, unless that is 0.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            send_request(path, "ping", {}, timeout)
        except ControlError:
            if timeout and time.monotonic() >= deadline:
                raise
            time.sleep(0.1)
        else:
            return


def say(text: str) -> None:
    if text:
        print(text, flush=True)


def announced(words: Words) -> str:
    """What is said before it is done; nothing where standard output is the definitions' own."""
    if "file?" in VERBS[words.verb].takes and words.arguments.get("file", "-") == "-":
        return ""
    values: dict[str, Any] = {**DEFAULTS, **words.arguments, "timeout": words.timeout}
    values = {name: ", ".join(value) if isinstance(value, list) else value for name, value in values.items()}
    return VERBS[words.verb].announce.format_map(values)


def password() -> str:
    """From the terminal, without showing it, or from standard input."""
    if sys.stdin.isatty():
        from getpass import getpass

        return getpass()
    return sys.stdin.readline().rstrip("\n")


def unknown_verb(name: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, VERBS, 1)
    if close:
        return f"there is no verb {name!r}; did you mean {close[0]}?"
    return f"there is no verb {name!r}; `warren ctl help` lists them"


def overview(name: str) -> str:
    """How a verb is used; without one, which there are."""
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
            "--formatter table|json|csv|pretty_table, --json, -t SECONDS. `warren ctl help VERB` tells more.",
        ]
    )
