"""Draw the Mermaid sources docs/pictures/*.mmd as SVG files, so that the site needs no script and no other host for them.

    python docs/extensions/draw_pictures.py [NAME ...]

Mermaid (MIT licence) comes from npm into a temporary folder, and runs in headless Chromium. Each SVG names the digest of its
source; a test compares them. The colours follow the colours of the reader's system or of the page.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from playwright.sync_api import Page, sync_playwright

PICTURES: Final = Path(__file__).parents[1] / "pictures"
MERMAID: Final = "mermaid@11.17.2"
BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

COLOURS: Final = {
    "box": ("#e9f3f2", "#20302f"),
    "edge": ("#0b5f5b", "#5fd3c7"),
    "text": ("#16211e", "#e6f0ee"),
    "line": ("#4a5f5c", "#9db5b1"),
    "note": ("#fdf0e6", "#3a2a1e"),
    "note-edge": ("#b3410d", "#ffa469"),
    "back": ("#fefefd", "#1c2526"),
}
"""Colours by their use: light, as Mermaid draws it, and dark."""

THEME: Final = {
    "fontFamily": "system-ui, DejaVu Sans, sans-serif",
    "fontSize": "14px",
    "primaryColor": "box",
    "primaryTextColor": "text",
    "primaryBorderColor": "edge",
    "secondaryColor": "box",
    "tertiaryColor": "back",
    "mainBkg": "box",
    "nodeBorder": "edge",
    "nodeTextColor": "text",
    "lineColor": "line",
    "textColor": "text",
    "titleColor": "text",
    "edgeLabelBackground": "back",
    "actorBkg": "box",
    "actorBorder": "edge",
    "actorTextColor": "text",
    "actorLineColor": "line",
    "signalColor": "line",
    "signalTextColor": "text",
    "labelBoxBkgColor": "box",
    "labelBoxBorderColor": "edge",
    "labelTextColor": "text",
    "loopTextColor": "text",
    "noteBkgColor": "note",
    "noteBorderColor": "note-edge",
    "noteTextColor": "text",
    "labelColor": "text",
    "altBackground": "back",
    "transitionColor": "line",
    "transitionLabelColor": "text",
    "stateLabelColor": "text",
    "stateBkg": "box",
    "labelBackgroundColor": "back",
    "specialStateColor": "edge",
}


def digest_of(source: str) -> str:
    """Return the digest by which a picture names its source."""
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def draw(page: Page, source: str) -> str:
    """Return the SVG of a Mermaid source."""
    variables = {name: COLOURS[use][0] if use in COLOURS else use for name, use in THEME.items()}
    options = {
        "startOnLoad": False,
        "theme": "base",
        "themeVariables": variables,
        "themeCSS": ".edgeLabel rect, .labelBkg { opacity: 1 !important }",
        "htmlLabels": False,
        "flowchart": {"htmlLabels": False, "useMaxWidth": False, "nodeSpacing": 30, "rankSpacing": 45},
        "sequence": {
            "mirrorActors": False,
            "useMaxWidth": False,
            "width": 130,
            "height": 40,
            "messageMargin": 30,
        },
        "state": {"useMaxWidth": False},
    }
    page.evaluate("options => mermaid.initialize(options)", options)
    svg: str = page.evaluate("async source => (await mermaid.render('picture', source)).svg", source)
    for name, (light, _) in COLOURS.items():
        svg = re.sub(light, f"var(--{name})", svg, flags=re.IGNORECASE)
    light_colours = ";".join(f"--{name}:{light}" for name, (light, _) in COLOURS.items())
    dark_colours = ";".join(f"--{name}:{dark}" for name, (_, dark) in COLOURS.items())
    style = f"<style>:root{{{light_colours}}}@media (prefers-color-scheme:dark){{:root{{{dark_colours}}}}}</style>"
    head, rest = svg.split(">", 1)
    return f"<!-- source: {digest_of(source)} -->\n{head}>{style}{rest}\n"


def main() -> int:
    """Draw the named pictures, or all; return the exit status."""
    browser = next(filter(None, [os.environ.get("CHROMIUM"), *map(shutil.which, BROWSERS)]), None)
    if browser is None or shutil.which("npm") is None:
        print("draw_pictures: needs chromium and npm", file=sys.stderr)
        return 2
    sources = sorted(path for path in PICTURES.glob("*.mmd") if not sys.argv[1:] or path.stem in sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        subprocess.run(
            ["npm", "pack", "--silent", MERMAID], cwd=folder, check=True, stdout=subprocess.DEVNULL
        )
        archive = next(Path(folder).glob("*.tgz"))
        shutil.unpack_archive(archive, folder, filter="data")
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        chromium = playwright.chromium.launch(executable_path=browser, args=arguments)
        page = chromium.new_page()
        page.set_content("<!doctype html><body></body>")
        page.add_script_tag(path=Path(folder) / "package" / "dist" / "mermaid.min.js")
        for source in sources:
            source.with_suffix(".svg").write_text(
                draw(page, source.read_text(encoding="utf-8")), encoding="utf-8"
            )
            print(source.with_suffix(".svg").name)
        chromium.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
