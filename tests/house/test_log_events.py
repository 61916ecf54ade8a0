"""What the SDK logs has a stable form, and every event stands in the documentation with its level."""

from __future__ import annotations

import ast
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from warren.core.log_output import JsonLines, parts_of

ROOT = Path(__file__).parents[2]
LEVELS = {"debug", "info", "warning", "error", "critical", "exception"}
FORM = re.compile(r"[^%:=]+(: \w+=%[sdg]s?(: %s)?( \w+=%[sdg]s?(: %s)?)*)?")


def logged() -> Iterator[tuple[str, str]]:
    """Level and message of every call that logs in `warren.sdk`."""
    for path in sorted((ROOT / "sdk/warren/sdk").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            owner, text = node.func.value, node.args[0] if node.args else None
            if node.func.attr in LEVELS and isinstance(owner, ast.Name) and owner.id == "log":
                assert isinstance(text, ast.Constant), f"{path}:{node.lineno}"
                yield "error" if node.func.attr == "exception" else node.func.attr, str(text.value)


def test_every_message_is_an_event_and_its_fields() -> None:
    assert [message for _, message in logged() if not FORM.fullmatch(message)] == []


def test_every_event_is_documented_with_its_level() -> None:
    page = (ROOT / "docs/observe.md").read_text().partition("\n## Logs\n")[2]
    documented = set(re.findall(r"^\| `([^`]+)` \| (\w+) \|", page, re.MULTILINE))
    assert documented == {(message.partition(": ")[0], level) for level, message in logged()}


def record(message: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("warren.sdk", logging.WARNING, "f", 1, message, arguments, None)


def test_a_record_has_parts() -> None:
    lost = record("consumer lost: queue=%s reason=%s", "billing", "a b=c")
    assert parts_of(lost) == ("consumer lost", {"queue": "billing", "reason": "a b=c"})
    circuit = record(
        "circuit open: queue=%s failures=%s pause=%gs error=%s: %s", "q", 5, 2.5, "KeyError", "x"
    )
    assert parts_of(circuit) == (
        "circuit open", {"queue": "q", "failures": 5, "pause": "2.5s", "error": "KeyError: x"},
    )  # fmt: skip
    line = json.loads(JsonLines().format(lost))
    assert (line["event"], line["fields"]["queue"]) == ("consumer lost", "billing")
    assert line["message"] == "consumer lost: queue=billing reason=a b=c"


def test_a_record_of_another_form_is_only_a_message() -> None:
    for message, arguments in (("plain", ()), ("%s: x=%s", ("a", "b")), ("few: x=%s y=%s", ())):
        assert parts_of(record(message, *arguments))[1] == {}


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
