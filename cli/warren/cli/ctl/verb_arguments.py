"""Parser of the command line of `warren ctl`. Options may precede the verb, follow it, or stand between its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from warren.cli.ctl.verbs import VERBS, Option, Verb
from warren.core.errors import UsageError

GENERAL_OPTIONS: Final = (
    Option("vhost", short="p"),
    Option("quiet", flag=True, short="q"),
    Option("silent", flag=True, short="s"),
    Option("no-table-headers", flag=True),
    Option("formatter"),
    Option("json", flag=True),
    Option("timeout", short="t"),
    Option("data-dir"),
    Option("socket"),
    Option("node", short="n"),
    Option("longnames", flag=True, short="l"),
    Option("help", flag=True, short="h"),
)
FORMATTERS: Final = ("table", "json", "csv", "pretty_table")


@dataclass
class CommandLine:
    """Parsed command line of `warren ctl`: the verb, its arguments, and the options that every verb takes."""

    verb: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Arguments of the verb, by name."""
    general: dict[str, Any] = field(default_factory=dict)
    """Values of the options that every verb takes, such as `--timeout`, by name."""

    @property
    def formatter(self) -> str:
        """Output format: table, json, csv or pretty_table."""
        return "json" if self.general.get("json") else str(self.general.get("formatter", "table"))

    @property
    def timeout(self) -> float:
        """Seconds to wait for the broker (option `--timeout`); 0 is no limit."""
        return float(self.general.get("timeout", 60.0))


def parse_command_line(line: Sequence[str]) -> CommandLine:
    """Parse a command line.

    :param line: words after `warren ctl`
    :raises UsageError: for an unknown verb or option, or missing or surplus arguments
    """
    words = CommandLine()
    given: list[str] = []
    options: list[tuple[str, str | None]] = []
    rest = list(line)
    # The verb is searched first, because it decides which options have a value.
    name = next((word for word in _words_without_option_values(rest) if not word.startswith("-")), "")
    verb = VERBS.get(name, Verb(""))
    known = _options_by_name((*verb.options, *GENERAL_OPTIONS))
    while rest:
        word = rest.pop(0)
        if word == "--":
            given += rest
            break
        if not word.startswith("-") or word == "-":
            given.append(word)
            continue
        key, equals, value = word.partition("=")
        option = known.get(key)
        if option is None:
            raise UsageError(_unknown_option(key, name, known))
        if option.flag:
            if equals:
                raise UsageError(f"{key} takes no value")
            options.append((option.name, None))
        elif equals:
            options.append((option.name, value))
        elif rest:
            options.append((option.name, rest.pop(0)))
        else:
            raise UsageError(f"{key} needs a value")
    own = {option.name: option for option in verb.options}
    for option_name, text in options:
        if option_name in own:
            words.arguments[own[option_name].argument] = _value(own[option_name], text)
        else:
            words.general[option_name] = True if text is None else text
    _check_general(words)
    words.verb = given.pop(0) if given else ""
    if words.verb in VERBS and not words.general.get("help"):
        _assign_arguments(words, verb, given)
    elif words.verb == "help":
        words.arguments["verb"] = given[0] if given else ""
    return words


def _words_without_option_values(line: list[str]) -> list[str]:
    """Return the words of a command line without the values of options that every verb takes, such as `-p NAME`.

    The first of these words that is no option is the verb.
    """
    known = _options_by_name(GENERAL_OPTIONS)
    left: list[str] = []
    skip = False
    for word in line:
        option = known.get(word)
        if not skip:
            left.append(word)
        skip = not skip and option is not None and not option.flag
    return left


def _options_by_name(options: Sequence[Option]) -> dict[str, Option]:
    table = {f"--{option.name}": option for option in reversed(options)}
    return table | {f"-{option.short}": option for option in reversed(options) if option.short}


def _unknown_option(key: str, verb: str, known: dict[str, Option]) -> str:
    names = sorted(name for name in known if name.startswith("--"))
    return f"there is no option {key}{f' of {verb}' if verb else ''}; the options are: {' '.join(names)}"


def _value(option: Option, text: str | None) -> Any:
    if text is None:
        return True
    if not option.number:
        return text
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"--{option.name} must be a number, not {text!r}") from None


def _check_general(words: CommandLine) -> None:
    if words.formatter not in FORMATTERS:
        raise UsageError(f"there is no formatter {words.formatter!r}; there are: {', '.join(FORMATTERS)}")
    try:
        if words.timeout < 0:
            raise ValueError
    except ValueError:
        raise UsageError("--timeout must be a number of seconds, at least 0") from None


def _assign_arguments(words: CommandLine, verb: Verb, given: list[str]) -> None:
    """Store the words after the verb (`given`) in `words.arguments`, by the names of the verb's arguments.

    :raises UsageError: if an argument is missing, or there are too many words
    """
    if verb.vhost:
        words.arguments["vhost"] = words.general.get("vhost", "/")
    for name in verb.takes:
        if name.endswith("..."):
            words.arguments[name[:-3]] = given
            return
        if given:
            words.arguments[name.rstrip("?")] = given.pop(0)
        elif not name.endswith("?"):
            raise UsageError(f"{words.verb} needs {name.upper()}: {words.verb} {verb.usage}")
    if given:
        raise UsageError(f"{words.verb} does not take {given[0]!r}: {words.verb} {verb.usage}".rstrip(": "))
