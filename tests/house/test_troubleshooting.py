"""Troubleshooting page: the texts that docs/troubleshooting.md quotes exist in the source, and no exception is missing."""

from __future__ import annotations

import ast
import functools
import re
import traceback
from collections.abc import Iterator
from email.message import Message
from pathlib import Path

import pytest

import warren.patterns
import warren.sdk
from warren.core import documentation_links
from warren.core.errors import ExitStatus
from warren.sdk import Nacked, RemoteError, WarrenError
from warren.wire.reply_codes import Reply

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/troubleshooting.md"
PACKAGES = ("broker", "cli", "core", "patterns", "pipeline", "sdk", "wire")

FOREIGN = {"OpenSSL", "Python", "RabbitMQ", "Spark", "operating system"}
"""Origins that the page names in brackets behind a text that is not Warren's."""

EXPORTED_ERRORS = [
    value
    for package in (warren.sdk, warren.patterns)
    for name in package.__all__
    if isinstance(value := getattr(package, name), type) and issubclass(value, WarrenError)
]

REFUSED_ACCESS = "{} to {} '{}' in vhost '{}' refused for user '{}'"

ASSEMBLED = {
    "ACCESS_REFUSED - write access to exchange ... in vhost ... refused for user ...": (
        "write",
        "{} access",
        "exchange",
        REFUSED_ACCESS,
    ),
    "AMQP_URL is empty": ("AMQP_URL", "{} is empty: set it to"),
    "cannot make the data folder ...": ("make the data folder {}",),
    "cannot obtain exclusive access to locked queue ...": ("cannot obtain exclusive access to locked {}",),
    "cannot write in the data folder ...": ("write in the data folder {}",),
    "configure access to ... in vhost ... refused for user ...": ("configure", "{} access", REFUSED_ACCESS),
    "is not an App, but of type ...": ("an App", "{} is not {}, but of type"),
    "takes a store, not ...": ("a store", "{} takes {}, not {}: write {}"),
    "no setting ...; did you mean ...?": ("no setting {}", "; did you mean {}?"),
    "low on disk": ("low on ", "disk"),
    "low on memory": ("low on ", "memory"),
}
"""Quoted text that is in no single literal -> the literals from which the source assembles it."""

HOLE = "{}"
"""Stands for an expression of an f-string in `templates`."""
DISTINCTIVE = 12
"""Characters; a quoted text with fewer fixed ones has to be a whole literal, because many literals contain it."""


def first_columns(*headers: str) -> list[str]:
    """Return the first cells of the rows of all tables of the page whose first column has one of these headers."""
    cells: list[str] = []
    for table in re.findall(r"(?:^\|.*\n)+", PAGE.read_text(), re.MULTILINE):
        header, _, *rows = (line.split(" | ")[0].removeprefix("| ") for line in table.splitlines())
        if header in headers:
            cells += rows
    return cells


def quotes() -> list[tuple[str, str]]:
    """Return the texts that the page quotes in headings and tables, each with its origin in brackets, or with ""."""
    places = re.findall(r"^### (.+)$", PAGE.read_text(), re.MULTILINE)
    places += first_columns("Text", "Reason", "Symptom")
    return [quote for place in places for quote in re.findall(r"`([^`]+)`(?: \(([^)]+)\))?", place)]


def fixed_parts(quote: str) -> list[str]:
    """Return the parts of a quoted text between its `...`, without the name of a reply code, which no literal has."""
    name, dash, rest = quote.partition(" - ")
    return [part.strip() for part in (rest if dash and name in Reply.__members__ else quote).split("...")]


@functools.cache
def templates() -> str:
    """Return the string literals of the packages without docstrings, one a line; expressions of f-strings are holes."""
    paths = (path for package in PACKAGES for path in (ROOT / package / "warren").rglob("*.py"))
    found = {" ".join(text.split()) for path in paths for text in _strings(ast.parse(path.read_text()))}
    return "\n".join(("", *sorted(found), ""))


def _strings(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.JoinedStr):
            yield "".join(
                str(value.value) if isinstance(value, ast.Constant) else HOLE for value in child.values
            )
        elif isinstance(child, ast.Constant) and not isinstance(node, ast.Expr | ast.JoinedStr):
            yield str(child.value)
        if not isinstance(child, ast.Constant):
            yield from _strings(child)


def stands_in_the_source(quote: str) -> bool:
    if quote in ASSEMBLED:
        return all(" ".join(literal.split()) in templates() for literal in ASSEMBLED[quote])
    parts = fixed_parts(quote)
    pattern = "[^\n]*".join(map(re.escape, parts))
    if quote.startswith("event="):
        pattern = rf"\n{pattern}[ \n]"
    elif sum(map(len, parts)) < DISTINCTIVE:
        pattern = rf"\n{pattern}\n"
    return re.search(pattern, templates()) is not None


def test_each_quoted_text_exists_in_the_source() -> None:
    own = [quote for quote, origin in quotes() if not origin]
    assert len(own) > 150
    gone = [
        f"`{quote}` is in no string literal of the packages"
        for quote in own
        if not stands_in_the_source(quote)
    ]
    assert not gone, "\n".join(gone)


def test_the_origin_of_a_foreign_text_is_known() -> None:
    assert {origin for _, origin in quotes()} - {""} <= FOREIGN


def test_each_assembled_text_is_on_the_page() -> None:
    assert set(ASSEMBLED) - {quote for quote, _ in quotes()} == set()


def test_each_exported_exception_is_on_the_page() -> None:
    exported = {
        name
        for package in (warren.sdk, warren.patterns)
        for name in package.__all__
        if isinstance(value := getattr(package, name), type) and issubclass(value, BaseException)
    }
    listed = re.findall(r"`(\w+)`", "\n".join(first_columns("Exception")))
    assert sorted(listed) == sorted(exported)


def anchors() -> set[str]:
    """Return the anchors of the headings of the page, as the site makes them."""
    headings = re.findall(r"^##+ (.+)$", PAGE.read_text(), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


@pytest.mark.parametrize("error", EXPORTED_ERRORS, ids=lambda error: error.__name__)
def test_the_section_that_an_error_names_is_on_the_page(error: type[WarrenError]) -> None:
    assert error.help_section in {*anchors(), ""}


def test_a_row_of_the_exceptions_links_the_section_that_the_error_names() -> None:
    sections = {error.__name__: error.help_section for error in EXPORTED_ERRORS}
    rows = re.findall(r"^\| `(\w+)` \| .*?\]\(#([\w-]+)\)", PAGE.read_text(), re.MULTILINE)
    assert len(rows) > 8
    assert {name: sections[name] for name, _ in rows} == dict(rows)


def test_a_traceback_ends_with_a_link_to_the_page() -> None:
    last = "".join(traceback.format_exception(Nacked("queue is full"))).splitlines()[-1]
    assert last.startswith("help: ")
    assert last.endswith(Nacked.help_section)
    assert "help" not in "".join(traceback.format_exception(RemoteError("sold_out", "none left")))


@pytest.mark.parametrize(
    ("links", "page"),
    [
        ([], "page troubleshooting of the documentation, section patterns"),
        (["Documentation, https://warren.example/"], "https://warren.example/troubleshooting.html#patterns"),
        (
            ["Issues, https://code.example/w/issues", "Documentation, https://code.example/w/tree/main/docs"],
            "https://code.example/w/tree/main/docs/troubleshooting.md#patterns",
        ),
    ],
)
def test_a_reference_follows_the_metadata_of_the_package(
    monkeypatch: pytest.MonkeyPatch, links: list[str], page: str
) -> None:
    package = Message()
    for link in links:
        package["Project-URL"] = link
    monkeypatch.setattr(documentation_links, "metadata", lambda name: package)
    documentation_links._documentation_address.cache_clear()
    try:
        assert documentation_links.documentation_reference("troubleshooting", "patterns") == page
    finally:
        documentation_links._documentation_address.cache_clear()


@pytest.mark.parametrize("code", Reply, ids=lambda code: code.name)
def test_each_reply_code_is_on_the_page(code: Reply) -> None:
    assert first_columns("Code").count(f"{code.value} {code.name}") == 1


def test_each_exit_status_is_on_the_page() -> None:
    listed = {int(cell.split()[0]) for cell in first_columns("Exit status")}
    assert listed >= {status.value for status in ExitStatus} - {ExitStatus.SUCCESS}
