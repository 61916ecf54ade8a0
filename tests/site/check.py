"""Check the documentation as readers see it: build the site, serve it, and look at each page in headless Chromium.

python -m tests.site.check                       # all pages
python -m tests.site.check --page handle.html    # one page, or several
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.site.findings import Finding
from tests.site.pages import (
    SEARCHED,
    broken_links,
    html_pages,
    missing_search_words,
    pages_without_neighbours,
    undocumented_names,
)

ROOT = Path(__file__).parents[2]


def build(site: Path) -> None:
    """Build the site into a folder; warnings are errors."""
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)


def check(site: Path, pages: list[str], *, axe: bool = True) -> list[Finding]:
    """Return the defects of a built site; print each when it is found."""
    from tests.site.browser import chromium, look_at, served, unfound_words

    found: list[Finding] = []

    def report(finding: Finding) -> None:
        found.append(finding)
        print(finding, flush=True)

    for findings in (broken_links, pages_without_neighbours, undocumented_names, missing_search_words):
        for finding in findings(site):
            report(finding)
    with served(site) as url, chromium() as browser:
        for finding in unfound_words(browser, url, SEARCHED):
            report(finding)
        for number, name in enumerate(pages, 1):
            print(
                f"{number} of {len(pages)}: {name}",
                file=sys.stderr,
                end="\r\x1b[K" if sys.stderr.isatty() else "\n",
            )
            for finding in look_at(browser, url, [name], axe=axe):
                report(finding)
    return found


def main() -> int:
    """Run the program; return its exit status: 0 without findings, 1 with findings, 2 if something is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--page", action="append", default=[], help="path of a page in the site; by default all pages"
    )
    parser.add_argument("--site", type=Path, help="a site that has been built; by default it is built")
    parser.add_argument(
        "--no-axe", action="store_true", help="leave out the accessibility rules, which take longest"
    )
    options = parser.parse_args()
    began = time.monotonic()
    try:
        from tests.site.browser import BrowserMissing, find_browser
    except ModuleNotFoundError as error:
        print(f"docs-check: {error.name} is missing: pip install -e '.[docs]'", file=sys.stderr)
        return 2
    try:
        find_browser()
    except BrowserMissing as error:
        print(f"docs-check: {error}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        site = options.site or Path(folder)
        if options.site is None:
            build(site)
        site = site.resolve()
        pages = options.page or html_pages(site)
        found = check(site, pages, axe=not options.no_axe)
    print(f"docs-check: {len(found)} defects on {len(pages)} pages ({time.monotonic() - began:.0f} s)")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
