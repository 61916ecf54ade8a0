"""Checks of the built pages in headless Chromium: layout, colours, accessibility, console, requests."""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, TimeoutError, sync_playwright

from tests.site.findings import Finding

WIDTHS: Final = (1400, 820, 390)
"""Widths of a window in pixels: a laptop, a tablet, a phone."""
RULES: Final = {
    (1400, "light"): None,
    (390, "light"): None,
    (1400, "dark"): {"runOnly": ["color-contrast"]},
}
"""Views in which axe looks for violations, with its options. Between light and dark only colours differ."""
SCHEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

LAYOUT: Final = """() => {
  const defects = [];
  const root = document.documentElement;
  const name = element => {
    const text = (element.textContent || '').trim().replace(/\\s+/g, ' ').slice(0, 60);
    return `<${element.localName}> ${text}`;
  };
  const article = document.querySelector('article');
  if (root.scrollWidth > root.clientWidth) {
    const wide = [...document.querySelectorAll('body *')].filter(
      e => e.getBoundingClientRect().right > root.clientWidth + 1 && !e.closest('.md-typeset__scrollwrap, .md-sidebar'));
    const widest = wide.length ? `: ${name(wide.at(-1))}` : '';
    defects.push(`scrolls sideways by ${root.scrollWidth - root.clientWidth} px${widest}`);
  }
  for (const code of article.querySelectorAll('pre, pre > code')) {
    if (code.scrollWidth > code.clientWidth + 1)
      defects.push(`code is cut at the right edge by ${code.scrollWidth - code.clientWidth} px: ${name(code)}`);
  }
  if (root.clientWidth >= 1400) {
    for (const table of article.querySelectorAll('.md-typeset__scrollwrap')) {
      if (table.scrollWidth > table.clientWidth + 1)
        defects.push(`a table is cut by ${table.scrollWidth - table.clientWidth} px: ${name(table)}`);
    }
  }
  for (const picture of article.querySelectorAll('img')) {
    if (!picture.complete || !picture.naturalWidth) defects.push(`picture not loaded: ${picture.getAttribute('src')}`);
    if (!picture.alt) defects.push(`picture without a description: ${picture.getAttribute('src')}`);
  }
  const range = document.createRange();
  for (const code of article.querySelectorAll('code')) {
    if (code.closest('pre')) continue;
    const walker = document.createTreeWalker(code, NodeFilter.SHOW_TEXT);
    for (let node; node = walker.nextNode();) {
      // Signs belong to a short name, `--data-dir`; a long one may break between its words.
      const names = [...node.data.matchAll(/\\S+/g)];
      const words = names.flatMap(n => n[0].length <= 30 ? [n] : [...n[0].matchAll(/[A-Za-z0-9]+/g)].map(
        w => Object.assign(w, { index: w.index + n.index })));
      for (const word of words) {
        range.setStart(node, word.index);
        range.setEnd(node, word.index + word[0].length);
        const lines = new Set([...range.getClientRects()].filter(r => r.width).map(r => Math.round(r.top)));
        if (lines.size > 1) defects.push(`a name is broken within a word: ${word[0]} in ${name(code)}`);
      }
    }
  }
  return defects;
}"""
"""Returns the defects of the layout of the page at its present width, one line each."""


class BrowserMissing(Exception):
    """No Chromium on this machine."""


def find_browser() -> str:
    """Return the path of a Chromium: that of the environment variable `CHROMIUM`, or the first on the search path.

    :raises BrowserMissing: there is none.
    """
    named = os.environ.get("CHROMIUM")
    found = (
        named if named and Path(named).is_file() else next(filter(None, map(shutil.which, BROWSERS)), None)
    )
    if found is None:
        raise BrowserMissing(
            "no Chromium found: install the package chromium, or name one with CHROMIUM=/path/of/chromium"
        )
    return found


class _Quiet(http.server.SimpleHTTPRequestHandler):
    """Server of the site without a log."""

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextlib.contextmanager
def served(site: Path) -> Iterator[str]:
    """Serve a folder on the loopback interface; return its URL, which ends with a slash."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Start a headless Chromium.

    :raises BrowserMissing: there is none.
    """
    path = find_browser()
    # Root cannot use the sandbox; the pages are our own.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


def look_at(browser: Browser, url: str, pages: Sequence[str], *, axe: bool = True) -> Iterator[Finding]:
    """Yield the defects of pages at each width, light and dark.

    :param url: address of the site, with a slash at its end.
    :param pages: paths of the pages in the site.
    :param axe: also yield violations of accessibility rules.
    """
    for scheme in SCHEMES:
        context = browser.new_context(color_scheme=scheme, reduced_motion="reduce")
        page = context.new_page()
        noise = _noise_of(page, url)
        for name in pages:
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 900})
                if width == WIDTHS[0]:
                    page.goto(url + name)
                view = f"{width} px, {scheme}"
                yield from (Finding(name, view, defect) for defect in page.evaluate(LAYOUT))
                if axe and (width, scheme) in RULES:
                    yield from (
                        Finding(name, view, defect) for defect in _violations(page, RULES[width, scheme])
                    )
            yield from (Finding(name, scheme, defect) for defect in noise)
            noise.clear()
        context.close()


def _noise_of(page: Page, url: str) -> list[str]:
    """Return a list that gets the errors of the console, failed requests, and requests to other hosts."""
    noise: list[str] = []

    def requested(address: str) -> None:
        if not address.startswith((url, "data:", "blob:")):
            noise.append(f"request to another host: {address}")

    page.on("console", lambda message: noise.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: noise.append(str(error)))
    page.on("requestfailed", lambda request: noise.append(f"request failed: {request.url}"))
    page.on("request", lambda request: requested(request.url))
    return noise


def unfound_words(browser: Browser, url: str, searched: dict[str, str]) -> Iterator[Finding]:
    """Yield each word for which the search box of the site does not show the page that belongs to it.

    :param searched: words and the paths of their pages.
    """
    page = browser.new_page(viewport={"width": WIDTHS[0], "height": 900})
    page.goto(url + "index.html")
    for word, expected in searched.items():
        page.click(".md-search__input")
        page.keyboard.press("Control+A")
        page.keyboard.type(word)
        with contextlib.suppress(TimeoutError):
            page.wait_for_function(
                "path => [...document.querySelectorAll('.md-search-result__link')].some(a => a.href.includes(path))",
                arg=expected,
                timeout=20_000,
            )
            continue
        yield Finding(expected, "", f"the search box does not show this page for {word!r}")
    page.close()


def _violations(page: Page, rules: dict[str, list[str]] | None) -> Iterator[str]:
    options = {"resultTypes": ["violations"], **(rules or {})}
    for violation in Axe().run(page, options=options).response["violations"]:
        node = violation["nodes"][0]
        summary = " ".join(node["failureSummary"].split())
        yield f"axe {violation['id']} ({len(violation['nodes'])}): {node['target'][0]}: {summary}"
