"""Checks of the documentation: each finds a planted defect, and the built site has none of those that need no browser."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.site.pages import (
    SEARCHED,
    broken_links,
    html_pages,
    missing_search_words,
    pages_without_neighbours,
    undocumented_names,
)

ROOT = Path(__file__).parents[2]
HAS_TOOLS = all(map(importlib.util.find_spec, ("mkdocs", "playwright", "axe_playwright_python")))
needs_tools = pytest.mark.skipif(
    not HAS_TOOLS, reason="the extra `docs` is not installed: make docs-check installs it"
)

SOUND = """<!doctype html><html lang="en"><head><title>Page</title></head>
<body><main><article><h1>Page</h1>{}</article></main></body></html>"""


def site_with(folder: Path, body: str) -> Path:
    """Write a site of one page."""
    (folder / "page.html").write_text(SOUND.format(body))
    return folder


def test_a_link_to_no_file_and_to_no_anchor_is_found(tmp_path: Path) -> None:
    body = '<a href="gone.html">a</a><a href="#gone">b</a><a href="page.html#here">c</a><p id="here">'
    site = site_with(tmp_path, body)
    assert [finding.defect for finding in broken_links(site)] == [
        "the link #gone leads to no anchor",
        "the link gone.html leads to no file",
    ]


def test_a_page_without_neighbours_is_found(tmp_path: Path) -> None:
    (tmp_path / "good.html").write_text('<a class="md-footer__link" href="page.html">next</a>')
    site_with(tmp_path, "")
    assert [finding.page for finding in pages_without_neighbours(tmp_path)] == ["page.html"]


def test_a_public_name_without_a_description_is_found(tmp_path: Path) -> None:
    (tmp_path / "reference").mkdir()
    (tmp_path / "reference" / "testing.html").write_text(
        '<h3 id="warren.testing.Warren">Warren</h3><p>Runs Apps.</p><h3 id="warren.testing.DeadLettered"></h3>'
    )
    found = [finding.defect for finding in undocumented_names(tmp_path, ["warren.testing"])]
    assert found == ["warren.testing.DeadLettered has no description"]


def test_a_word_that_its_page_does_not_have_is_found(tmp_path: Path) -> None:
    docs = [{"location": page, "title": "", "text": word} for word, page in SEARCHED.items() if word != "TLS"]
    (tmp_path / "search").mkdir()
    (tmp_path / "search" / "search_index.json").write_text(json.dumps({"docs": docs}))
    assert [finding.page for finding in missing_search_words(tmp_path)] == [SEARCHED["TLS"]]


@pytest.mark.processes
@needs_tools
def test_without_a_browser_the_check_says_so_and_fails(tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": str(tmp_path), "CHROMIUM": ""}
    command = [sys.executable, "-m", "tests.site.check", "--page", "index.html"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "docs-check: no Chromium found: install the package chromium, or name one with CHROMIUM=/path/of/chromium\n"
    )


DEFECTS = {
    "scrolls sideways": '<div style="width: 3000px">wide</div>',
    "code is cut at the right edge": '<pre style="overflow: hidden; width: 200px"><code>'
    + "x" * 300
    + "</code></pre>",
    "a name is broken within a word": '<p style="width: 4em; overflow-wrap: anywhere"><code>max_connections</code></p>',
    "within a word: --priorities": '<p style="width: 4em"><code>--priorities</code></p>',
    "picture without a description": '<img src="data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA=">',
    "picture not loaded": '<img alt="gone" src="gone.png">',
    "request to another host": '<script src="http://127.0.0.2:9/script.js"></script>',
    "planted error": "<script>console.error('planted error')</script>",
    "axe color-contrast": '<p style="color: #bbb; background: #fff">pale</p>',
}


@pytest.mark.slow
@pytest.mark.processes
@needs_tools
def test_each_defect_of_a_page_is_found_in_the_browser(tmp_path: Path) -> None:
    from tests.site.browser import BrowserMissing, chromium, find_browser, look_at, served

    try:
        find_browser()
    except BrowserMissing as missing:
        pytest.skip(str(missing))
    names = []
    for number, body in enumerate(DEFECTS.values()):
        names.append(f"{number}.html")
        (tmp_path / names[-1]).write_text(SOUND.format(body))
    (tmp_path / "sound.html").write_text(SOUND.format("<p>Nothing is wrong with <code>this_page</code>.</p>"))
    (tmp_path / "favicon.ico").touch()
    with served(tmp_path) as url, chromium() as browser:
        found = list(look_at(browser, url, [*names, "sound.html"]))
    for name, defect in zip(names, DEFECTS, strict=True):
        assert any(finding.page == name and defect in finding.defect for finding in found), (defect, found)
    assert [finding for finding in found if finding.page == "sound.html"] == []


@pytest.mark.slow
@pytest.mark.processes
@needs_tools
def test_the_built_site_has_no_broken_link_and_describes_every_public_name(tmp_path: Path) -> None:
    from tests.site.check import build

    build(tmp_path)
    assert len(html_pages(tmp_path)) > 90
    for findings in (broken_links, pages_without_neighbours, undocumented_names, missing_search_words):
        assert [str(finding) for finding in findings(tmp_path)] == []
