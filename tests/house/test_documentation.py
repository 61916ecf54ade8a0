"""The documentation is one book: every page has its place, every example is shown and run."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_every_page_has_its_place() -> None:
    placed = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2])
    pages = [str(page.relative_to(DOCS)) for page in DOCS.glob("**/*.md")]
    assert sorted(placed) == sorted(pages), "each page once in the nav of mkdocs.yml"


def test_every_example_is_shown_and_run() -> None:
    shown = "".join(page.read_text() for page in DOCS.glob("**/*.md"))
    tests = "".join(test.read_text() for test in (ROOT / "tests").glob("**/*.py"))
    examples = [example.relative_to(ROOT) for example in (ROOT / "examples").glob("*.py")]
    assert len(examples) > 20
    for example in examples:
        assert f"{example.as_posix()}" in shown, f"{example} is on no page"
        assert example.stem in tests, f"no test runs {example}"
