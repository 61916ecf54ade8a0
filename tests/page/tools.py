"""Requirements of the management page's tests: a browser, and Playwright."""

from __future__ import annotations

import importlib.util
import os
import shutil

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HAS_TOOLS = all(map(importlib.util.find_spec, ("playwright", "axe_playwright_python"))) and (
    bool(os.environ.get("CHROMIUM")) or any(map(shutil.which, NAMES))
)
needs_browser = pytest.mark.skipif(
    not HAS_TOOLS, reason="Chromium or the extra `docs` is not installed: make page-check installs them"
)
