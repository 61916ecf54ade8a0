"""Links to the pages of the documentation that explain errors."""

from __future__ import annotations

import functools
from importlib.metadata import PackageNotFoundError, metadata
from typing import Final

DISTRIBUTION: Final = "warrenmq"
SOURCE_PAGE: Final = "docs/troubleshooting.md"
"""Path of the page in the repository."""


def troubleshooting_link(section: str) -> str:
    """Return a link to a section of the troubleshooting page.

    The address of the documentation is in the metadata of released packages only; a build without it gets the path of the
    page in the repository.

    :param section: anchor of the section's heading, such as `a-publish-fails`
    """
    return f"{_troubleshooting_page()}#{section}"


@functools.cache
def _troubleshooting_page() -> str:
    try:
        links = metadata(DISTRIBUTION).get_all("Project-URL") or []
    except PackageNotFoundError:
        return SOURCE_PAGE
    addresses = dict(link.split(", ", 1) for link in links)
    address = addresses.get("Documentation", "").rstrip("/")
    if not address:
        return SOURCE_PAGE
    # A repository shows the sources, a site the pages that are made from them.
    name = "troubleshooting.md" if address.endswith("/docs") else "troubleshooting.html"
    return f"{address}/{name}"
