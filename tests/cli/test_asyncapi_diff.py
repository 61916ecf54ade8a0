"""`warren asyncapi --diff` and `--html`: exit statuses, outputs, and a page that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command, Module
from tests.cli.test_asyncapi import SHOP

# A reader needs the new field; `since` of a reply is gone; the sku of a line may be null.
CHANGED = (
    SHOP.replace(
        "    lines: list[Line] = []", "    lines: list[Line] = []\n    currency: str\n    note: str = ''"
    )
    .replace("    since: datetime", "    reason: str = ''")
    .replace(
        "sku: str\n    price: Decimal\n\nclass Placed", "sku: str | None\n    price: Decimal\n\nclass Placed"
    )
)


@pytest.fixture
def old(warren: Command, module: Module, tmp_path: Path) -> Path:
    file = tmp_path / "old.json"
    done = warren("asyncapi", f"{module(SHOP)}:app", "-o", str(file))
    assert done.status == 0, done.err
    return file


def test_without_a_change_the_status_is_0(warren: Command, module: Module, old: Path) -> None:
    same = warren("asyncapi", f"{module(SHOP)}:app", "--diff", str(old))
    assert (same.status, same.out) == (0, "No changes.\n"), same.err


def test_breaking_changes_have_status_1_and_are_grouped(
    warren: Command, module: Module, old: Path, tmp_path: Path
) -> None:
    shop = f"{module(CHANGED)}:app"
    done = warren("asyncapi", shop, "--diff", str(old))
    assert done.status == 1, done.err
    readers, writers, rest = done.out.split("\n\n")
    assert readers.splitlines() == [
        "Breaking for readers of what the App sends:",
        "  get_quote (reply).since: it is required, and is not sent",
        "  placed.lines[].sku: it is sent as null, and string is accepted",
    ]
    assert writers.splitlines() == [
        "Breaking for writers of what the App handles:",
        "  placed.currency: it is required, and is not sent",
    ]
    assert "  placed.note: new field" in rest.splitlines()
    new = tmp_path / "new.json"
    assert warren("asyncapi", shop, "-o", str(new)).status == 0
    files = warren("asyncapi", "--diff", str(old), str(new), "--json")
    assert (files.status, files.json["breaking"]) == (1, 3)
    assert {each["breaks"] for each in files.json["changes"]} == {"readers", "writers", None}


@pytest.mark.parametrize(
    ("words", "content", "error"),
    [
        (["OLD", "--diff", "none.json"], "{}", "cannot read none.json"),
        (["OLD", "--diff", "OLD"], "{", "is not a document in json"),
        (["OLD", "--diff", "OLD"], "[]", "is not an AsyncAPI document"),
        (["OLD", "--diff", "OLD"], '{"openapi": "3.1.0"}', "the old document is not an AsyncAPI 3 document"),
        (["OLD", "--diff", "OLD", "--html"], "{}", "--diff prints changes: leave out --html"),
        (["OLD", "--json"], "{}", "--json prints the changes of --diff"),
    ],
)
def test_what_cannot_be_compared_has_status_2(
    warren: Command, tmp_path: Path, words: list[str], content: str, error: str
) -> None:
    (tmp_path / "old.json").write_text(content)
    done = warren("asyncapi", *[str(tmp_path / "old.json") if word == "OLD" else word for word in words])
    assert (done.status, len(done.err.splitlines())) == (2, 1), done.err
    assert error in done.err


class Page(HTMLParser):
    """Parser that collects what a page refers to, and checks that its elements are nested."""

    VOID = frozenset({"meta", "br", "link", "img", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.links += [value or "" for name, value in attrs if name == "href"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture
def page(warren: Command, module: Module) -> str:
    hostile = SHOP.replace('"""An order was placed."""', '"""<script>alert(1)</script> & placed."""')
    done = warren("asyncapi", f"{module(hostile)}:app", "--html", "--title", "Shop <b>")
    assert done.status == 0, done.err
    return done.out


def test_the_page_is_one_file_without_scripts_or_requests(page: str) -> None:
    parsed = Page(page)
    assert {"script", "link", "img", "iframe"}.isdisjoint(parsed.tags)
    assert not [
        name for name, _ in parsed.attributes if name in ("style", "src", "srcset") or name.startswith("on")
    ]
    assert "url(" not in page
    assert "@import" not in page
    assert "secret" not in page
    style = page.partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{digest}'" in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; placed." in page
    assert "<h1>Shop &lt;b&gt;</h1>" in page


def test_the_page_has_landmarks_and_each_link_a_target(page: str) -> None:
    parsed = Page(page)
    assert {"header", "nav", "main", "h1", "h2", "h3"} <= set(parsed.tags)
    assert parsed.tags.count("h1") == 1
    assert ("lang", "en") in parsed.attributes
    assert ("content", "width=device-width, initial-scale=1") in parsed.attributes
    assert "prefers-color-scheme: dark" in page
    assert len(parsed.ids) == len(set(parsed.ids))
    assert {link.removeprefix("#") for link in parsed.links} <= set(parsed.ids)


def test_the_page_shows_fields_and_examples_that_fit(page: str) -> None:
    text = re.sub(r"<[^>]+>", "", page)
    for fact in (
        "order_id string required",
        "lines array of Line optional",
        "at string (date-time) required",
    ):
        assert fact in text
    examples: list[Any] = [
        json.loads(found.replace("&quot;", '"'))
        for found in re.findall(r"<pre><code>(.*?)</code></pre>", page, re.DOTALL)
    ]
    assert {"order_id": "text", "at": "2026-02-01T12:00:00Z", "lines": []} in examples


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_a_browser_shows_the_page_without_horizontal_scrolling(page: str, tmp_path: Path) -> None:
    # A frame of a phone's width, because a window of a headless browser is at least 500 pixels wide.
    (tmp_path / "page.html").write_text(re.sub(r"<meta http-equiv[^>]*>", "", page))
    (tmp_path / "frame.html").write_text(
        '<iframe id="f" src="page.html" width="320" height="640"></iframe><script>onload = () => {'
        "const d = f.contentDocument.documentElement;"
        "document.title = `${d.scrollWidth} ${d.clientWidth}`; document.body.append(document.title)}</script>"
    )
    shown = subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
         f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", (tmp_path / "frame.html").as_uri()],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    sizes = re.search(r"<title>(\d+) (\d+)</title>", shown.stdout)
    assert sizes is not None, shown.stdout + shown.stderr
    assert sizes[1] == sizes[2]
