"""Log grammar: every event has one literal form, and docs/log-events.md lists all of them with level and fields."""

from __future__ import annotations

import ast
import functools
import json
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import TypeGuard

import pytest

from warren.core.log_output import TEMPLATE, JsonLines, split_event

ROOT = Path(__file__).parents[2]
LEVELS = {"debug", "info", "warning", "error", "critical", "exception", "log"}
LOGGERS = {"log", "logger", "_log", "_logger"}
LOGGER = re.compile(rf"\b(?:{'|'.join(sorted(LOGGERS))})\s*\.\s*(?:{'|'.join(sorted(LEVELS))})\b")
"""Text of a call that logs."""

HEADINGS = {
    "broker/warren/broker": "Broker: start, resources, management and access",
    "broker/warren/broker/channel": "Broker: connections and channels",
    "broker/warren/broker/connection": "Broker: connections and channels",
    "broker/warren/broker/model": "Broker: queues, exchanges, streams and policies",
    "broker/warren/broker/store": "Broker: store",
    "cli": "Command line and testing",
    "core": "Command line and testing",
    "patterns": "Patterns",
    "pipeline": "Pipelines",
    "sdk/warren/sdk": "SDK",
    "sdk/warren/testing": "Command line and testing",
    "wire": "Command line and testing",
}
"""Folder -> the heading of docs/log-events.md that lists the events of its modules; the longest folder counts."""


Event = tuple[str, str, tuple[str, ...]]
"""Name, level and field names."""


def logs(node: ast.AST) -> TypeGuard[ast.Call]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS:
        owner = node.func.value
        return (owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")) in LOGGERS
    return False


@functools.cache
def log_calls(path: Path) -> list[ast.Call]:
    """Return every call of a module that logs. Most modules have none, as their text shows without a syntax tree."""
    text = path.read_text()
    if not LOGGER.search(text):
        return []
    return [node for node in ast.walk(ast.parse(text)) if logs(node)]


def heading_of(path: Path) -> str:
    name = path.relative_to(ROOT).as_posix()
    return HEADINGS[max((folder for folder in HEADINGS if name.startswith(folder + "/")), key=len)]


def modules(heading: str) -> list[Path]:
    """Return the modules whose events stand under a heading."""
    folders = [ROOT / folder for folder, name in HEADINGS.items() if name == heading]
    found = {path for folder in folders for path in folder.rglob("*.py") if heading_of(path) == heading}
    return sorted(found)


def logged(heading: str) -> tuple[set[Event], list[str]]:
    """Return the events that the modules of a heading log, and the places of calls that do not fit the grammar."""
    events: set[Event] = set()
    wrong: list[str] = []
    for path in modules(heading):
        for call in log_calls(path):
            assert isinstance(call.func, ast.Attribute)
            text = call.args[0] if call.args else None
            template = (
                TEMPLATE.fullmatch(text.value)
                if isinstance(text, ast.Constant) and isinstance(text.value, str)
                else None
            )
            keys = tuple(re.findall(r" (\w+)=", template[2])) if template is not None else ()
            if template is None or call.func.attr == "log" or len(keys) != len(call.args) - 1:
                wrong.append(f"{path.relative_to(ROOT)}:{call.lineno}: {ast.unparse(call)[:120]}")
                continue
            level = "error" if call.func.attr == "exception" else call.func.attr
            events.add((template[1], level, keys))
    return events, wrong


def documented(heading: str) -> list[Event]:
    """Return the rows of docs/log-events.md under a heading."""
    page = (ROOT / "docs/log-events.md").read_text()
    sections = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    rows = re.findall(r"^\| `([^`]+)` \| (\w+) \|([^|]*)\|", sections[heading], re.MULTILINE)
    return [(event, level, tuple(re.findall(r"`([^`]+)`", fields))) for event, level, fields in rows]


@pytest.mark.parametrize("heading", sorted(set(HEADINGS.values())))
def test_every_log_call_has_a_literal_template_of_the_grammar(heading: str) -> None:
    assert logged(heading)[1] == []


@pytest.mark.parametrize("heading", sorted(set(HEADINGS.values())))
def test_every_event_is_documented_with_level_and_fields(heading: str) -> None:
    rows = documented(heading)
    assert sorted(rows) == sorted(logged(heading)[0])


def test_every_module_belongs_to_a_heading_of_the_page() -> None:
    page = (ROOT / "docs/log-events.md").read_text()
    assert set(re.findall(r"^## (.+)$", page, re.MULTILINE)) == set(HEADINGS.values())


def record(message: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("warren.sdk", logging.WARNING, "f", 1, message, arguments, None)


def test_a_json_line_has_event_and_fields() -> None:
    lost = record("event=consumer.lost queue=%s reason=%s", "billing", "a b=c %s")
    assert split_event(lost) == ("consumer.lost", {"queue": "billing", "reason": "a b=c %s"})
    line = json.loads(JsonLines().format(lost))
    assert (line["event"], line["fields"]["queue"]) == ("consumer.lost", "billing")
    assert line["message"] == "event=consumer.lost queue=billing reason=a b=c %s"


def test_fields_keep_numbers_and_turn_other_values_into_text() -> None:
    opened = record(
        "event=circuit.opened failures=%s pause_seconds=%.1f error=%s name=%r", 5, 2.5, KeyError("x"), "q"
    )
    assert split_event(opened) == (
        "circuit.opened", {"failures": 5, "pause_seconds": 2.5, "error": "'x'", "name": "q"},
    )  # fmt: skip


def test_an_event_without_fields_has_empty_fields() -> None:
    assert split_event(record("event=connection.blocked")) == ("connection.blocked", {})


def test_a_field_may_be_a_mapping() -> None:
    """`logging` makes a single mapping the arguments themselves."""
    assert split_event(record("event=a.b x=%s", {"k": 1})) == ("a.b", {"x": "{'k': 1}"})


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("plain", ()),
        ("event=lost", ()),
        ("event=consumer.lost queue=%s: again", ("a",)),
        ("event=%s.lost", ("a",)),
        ("event=a.b x=%s y=%s", ("a",)),
    ],
)
def test_a_record_of_another_form_is_only_a_message(message: str, arguments: tuple[object, ...]) -> None:
    assert split_event(record(message, *arguments)) is None


@pytest.mark.processes
def test_a_record_inside_a_span_names_it() -> None:
    program = (
        "import logging; from opentelemetry import trace; from warren.core.log_output import JsonLines\n"
        "context = trace.SpanContext(0xABC, 0xDEF, False, trace.TraceFlags(1))\n"
        "with trace.use_span(trace.NonRecordingSpan(context)):\n"
        "    print(JsonLines().format(logging.LogRecord('a', 20, 'f', 1, 'x', (), None)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    line = json.loads(done.stdout)
    assert (line["trace_id"], line["span_id"]) == (f"{0xABC:032x}", f"{0xDEF:016x}")
