"""Documentation: every page is in the navigation, every example is on a page and run by a test."""

from __future__ import annotations

import hashlib
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_every_page_is_in_the_navigation() -> None:
    in_navigation = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2])
    pages = [str(page.relative_to(DOCS)) for page in DOCS.glob("**/*.md")]
    assert sorted(in_navigation) == sorted(pages), "each page once in the nav of mkdocs.yml"


@pytest.mark.parametrize(
    "package",
    [
        "warren.sdk",
        "warren.sdk.extend",
        "warren.sdk.planning",
        "warren.patterns",
        "warren.patterns.celery",
        "warren.testing",
        "warren.broker",
        "warren.pipeline",
    ],
)
def test_the_reference_shows_every_public_name_once(package: str) -> None:
    pages = "".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    shown = re.findall(rf"^::: {re.escape(package)}\.(\w+)$", pages, re.MULTILINE)
    public = set(importlib.import_module(package).__all__)
    if package == "warren.sdk.extend":
        # Its names that applications use too are among those of `warren.sdk`.
        public -= set(importlib.import_module("warren.sdk").__all__)
    assert sorted(shown) == sorted(public), "write `::: package.Name` on a page of docs/reference/"


def test_every_page_opens_with_a_sentence_that_says_what_for() -> None:
    """A page begins with its title and then prose, not with code, a table, a list or a picture."""
    silent = []
    for page in DOCS.glob("**/*.md"):
        text = re.sub(r"\A---\n.*?\n---\n|<!--.*?-->\n+", "", page.read_text(), flags=re.DOTALL)
        opening = re.match(r"\s*# [^\n]+\n\n([^\n].*?)(?:\n\n|\Z)", text, re.DOTALL)
        if opening is None or not re.match(r"[A-Z`].*[.:]\Z", opening[1].strip(), re.DOTALL):
            silent.append(page.relative_to(DOCS).as_posix())
    assert silent == []


def test_every_picture_is_drawn_from_its_source() -> None:
    """`docs/extensions/draw_pictures.py` draws `docs/pictures/*.mmd`; each SVG names the digest of its source."""
    sources = sorted((DOCS / "pictures").glob("*.mmd"))
    assert len(sources) > 15
    for source in sources:
        digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
        drawn = source.with_suffix(".svg").read_text()
        assert f"<!-- source: {digest} -->" in drawn, f"draw it again: draw_pictures.py {source.stem}"


def test_every_example_is_on_a_page_and_in_a_test() -> None:
    shown = "".join(page.read_text() for page in DOCS.glob("**/*.md"))
    tests = "".join(test.read_text() for test in (ROOT / "tests").glob("**/*.py"))
    examples = [example.relative_to(ROOT) for example in (ROOT / "examples").glob("*.py")]
    assert len(examples) > 20
    for example in examples:
        assert f"{example.as_posix()}" in shown, f"{example} is on no page"
        assert example.stem in tests, f"no test runs {example}"


def test_the_pages_for_contributors_name_only_files_and_folders_that_exist() -> None:
    folder = re.compile(
        r"`((?:benchmarks|broker|cli|core|docs|examples|patterns|pipeline|sdk|tests|wire)/[\w./-]*)`"
    )
    for page in (DOCS / "contributing").glob("*.md"):
        missing = [name for name in folder.findall(page.read_text()) if not (ROOT / name).exists()]
        assert not missing, f"{page.name}: {missing}"
