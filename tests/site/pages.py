"""Checks of the built pages without a browser: links, anchors, the reference, and the search index."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from tests.site.findings import Finding

PUBLIC_PACKAGES: Final = (
    "warren.sdk",
    "warren.patterns",
    "warren.testing",
    "warren.broker",
    "warren.pipeline",
)

SEARCHED: Final = {
    "idempotent consumer": "patterns/once.html",
    "DLX": "patterns/dead_letters.html",
    "dead letter exchange": "patterns/dead_letters.html",
    "scheduler": "patterns/timers.html",
    "delayed message": "patterns/delay.html",
    "outbox": "patterns/outbox.html",
    "troubleshooting": "troubleshooting.html",
    "circuit breaker": "handle.html",
    "TLS": "connections.html",
}
"""Words that people type into the search box, and the page that they need."""


class _Page(HTMLParser):
    """Anchors and links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.footer_links = 0
        self._in_footer = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value is not None}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
            self.footer_links += "md-footer__link" in values.get("class", "")
        elif "src" in values:
            self.links.append(values["src"])
        elif tag == "link" and values.get("rel") not in ("canonical", "edit"):
            self.links.append(values.get("href", ""))


def html_pages(site: Path) -> list[str]:
    """Return the paths of the pages in the site, without the page for addresses that do not exist."""
    return sorted(
        page.relative_to(site).as_posix() for page in site.rglob("*.html") if page.name != "404.html"
    )


def broken_links(site: Path) -> Iterator[Finding]:
    """Yield each link to a file or an anchor of the site that does not exist."""
    pages: dict[Path, _Page] = {}
    for name in html_pages(site):
        page = pages[site / name] = _Page()
        page.feed((site / name).read_text())
    for path, page in pages.items():
        for link in sorted(set(page.links)):
            address = urlsplit(link)
            if address.scheme or address.netloc:
                continue
            target = (path.parent / unquote(address.path)).resolve() if address.path else path
            name = path.relative_to(site).as_posix()
            if not target.is_file():
                yield Finding(name, "", f"the link {link} leads to no file")
            elif address.fragment and target in pages:
                anchor = unquote(address.fragment)
                if anchor not in pages[target].anchors:
                    yield Finding(name, "", f"the link {link} leads to no anchor")


def pages_without_neighbours(site: Path) -> Iterator[Finding]:
    """Yield each page without a link to the previous or the next page."""
    for name in html_pages(site):
        page = _Page()
        page.feed((site / name).read_text())
        if not page.footer_links:
            yield Finding(name, "", "no link to the previous or the next page")


class _Documented(HTMLParser):
    """Identifiers of documented objects with the text that follows their heading."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[str, int] = {}
        self._current: str | None = None
        self._in_code = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in ("h2", "h3", "h4"):
            self._current = values.get("id")
        if tag == "p" and self._current:
            self.texts[self._current] = self.texts.get(self._current, 0) + 1


def undocumented_names(site: Path, packages: Sequence[str] = PUBLIC_PACKAGES) -> Iterator[Finding]:
    """Yield each public name that has no heading in the built reference, or a heading without a sentence below it."""
    documented = _Documented()
    for page in sorted((site / "reference").glob("*.html")):
        documented.feed(page.read_text())
    for package in packages:
        for name in importlib.import_module(package).__all__:
            if not documented.texts.get(f"{package}.{name}"):
                yield Finding("reference", "", f"{package}.{name} has no description")


def missing_search_words(site: Path) -> Iterator[Finding]:
    """Yield each searched word that its page does not contain in the search index."""
    entries = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    for word, page in SEARCHED.items():
        text = " ".join(
            f"{entry['title']} {entry['text']}"
            for entry in entries
            if entry["location"].partition("#")[0] == page
        )
        if word.lower() not in text.lower():
            yield Finding(page, "", f"the search index has no {word!r} on this page")
