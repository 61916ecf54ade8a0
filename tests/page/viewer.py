"""A person who looks at the management page in a browser."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, ViewportSize

PHONE: ViewportSize = {"width": 390, "height": 844}
LAPTOP: ViewportSize = {"width": 1400, "height": 900}

UNFOLD = """() => {
    const unfold = () => document.querySelectorAll("details.section:not([data-unfolded])").forEach((each) => {
        each.open = true;
        each.dataset.unfolded = "";
    });
    unfold();
    new MutationObserver(unfold).observe(document.body, { childList: true, subtree: true });
}"""


class Viewer:
    """Page of a browser, and what it complained about."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.noise: list[str] = []
        self.requests: list[str] = []
        page.set_default_timeout(30_000)
        page.on(
            "console", lambda message: self.noise.append(message.text) if message.type == "error" else None
        )
        page.on("pageerror", lambda error: self.noise.append(str(error)))
        page.on("request", lambda request: self._requested(request.url))
        page.on("dialog", lambda dialog: self.noise.append(f"dialog: {dialog.message}"))

    @classmethod
    @contextlib.contextmanager
    def at(
        cls, browser: Browser, url: str, scheme: Literal["light", "dark"] = "light", **options: Any
    ) -> Iterator[Viewer]:
        """Open a page of its own context, without a login."""
        context = browser.new_context(
            color_scheme=scheme, reduced_motion="reduce", viewport=LAPTOP, **options
        )
        try:
            yield cls(context.new_page(), url)
        finally:
            context.close()

    def _requested(self, address: str) -> None:
        self.requests.append(address)
        if not address.startswith((self.url, "data:", "blob:")):
            self.noise.append(f"request to another host: {address}")

    def log_in(self, name: str = "guest", password: str = "guest") -> None:
        """Log in at the start of the page."""
        self.page.goto(self.url + "/")
        self.page.get_by_label("Username").fill(name)
        self.page.get_by_label("Password").fill(password)
        self.page.get_by_role("button", name="Log in").click()

    def open(self, address: str, heading: str) -> None:
        """Open an address of the page, such as `queues`, and wait for its heading and data."""
        self.page.evaluate("address => { location.hash = address }", f"#/{address}")
        self.page.locator("h1", has_text=heading).wait_for()
        self.page.locator("main .loading").first.wait_for(state="detached")

    def show_all(self) -> None:
        """Unfold all sections, those too that the view adds from now on."""
        self.page.evaluate(UNFOLD)

    def show_column(self, title: str) -> None:
        """Show a column of the list, such as `Details: Client`."""
        self.page.get_by_text("Columns", exact=True).click()
        self.page.get_by_label(title, exact=True).check()
        self.page.get_by_text("Columns", exact=True).click()

    def forgive(self, *statuses: str) -> None:
        """Drop what the browser itself logs of answers with these statuses, which a test has asked for."""
        refused = tuple(f"the server responded with a status of {status}" for status in statuses)
        self.noise = [text for text in self.noise if not any(each in text for each in refused)]

    def sideways(self) -> int:
        """Return by how many pixels the page scrolls sideways."""
        return int(
            self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        )

    def violations(self, *, contrast: bool | None = None) -> list[str]:
        """Return the accessibility rules that the present view breaks.

        :param contrast: True for the contrast of colours only, False for all other rules; None for all.
        """
        from axe_playwright_python.sync_playwright import Axe

        options: dict[str, Any] = {"resultTypes": ["violations"]}
        if contrast:
            options["runOnly"] = ["color-contrast"]
        elif contrast is False:
            options["rules"] = {"color-contrast": {"enabled": False}}
        found = Axe().run(self.page, options=options).response["violations"]
        return [f"{each['id']}: {each['nodes'][0]['html']}" for each in found]

    def check_accessibility(self, address: str, heading: str, scheme: str) -> None:
        """Fail if a view breaks rules of accessibility, or scrolls a phone sideways.

        Between light and dark only colours differ, and between the widths anything but colours.
        """
        name = f"{re.sub('[^a-z0-9]+', '-', heading.lower()).strip('-')}-{scheme}"
        self.page.set_viewport_size(LAPTOP)
        self.open(address, heading)
        self.picture(name)
        self.show_all()
        self.page.locator("main .loading").first.wait_for(state="detached")
        assert self.violations(contrast=True if scheme == "dark" else None) == [], address
        if scheme == "light":
            self.page.set_viewport_size(PHONE)
            self.picture(f"{name}-phone")
            assert self.sideways() <= 0, address
            assert self.violations(contrast=False) == [], address

    def picture(self, name: str) -> None:
        """Keep a picture of the page, if the environment variable `PAGE_PICTURES` names a folder for them."""
        folder = os.environ.get("PAGE_PICTURES")
        if folder:
            self.page.screenshot(path=str(Path(folder) / f"{name}.png"))
