"""References to the pages of the documentation."""

from __future__ import annotations

import functools
from importlib.metadata import PackageNotFoundError, metadata
from typing import Final

DISTRIBUTION: Final = "warrenmq"


def documentation_reference(page: str, section: str) -> str:
    """Return where the documentation explains something: the address of a section, or words that name it.

    The address of the documentation is in the metadata of released packages only.

    :param page: name of the page, such as `troubleshooting`
    :param section: anchor of the section's heading, such as `a-publish-fails`
    """
    address = _documentation_address()
    if not address:
        return f"page {page} of the documentation, section {section}"
    # A repository shows the sources, a site the pages that are made from them.
    return f"{address}/{page}.{'md' if address.endswith('/docs') else 'html'}#{section}"


@functools.cache
def _documentation_address() -> str:
    """Return the address of the documentation, without a slash at its end; empty if it is not known."""
    try:
        links = metadata(DISTRIBUTION).get_all("Project-URL") or []
    except PackageNotFoundError:
        return ""
    addresses = dict(link.split(", ", 1) for link in links)
    return str(addresses.get("Documentation", "")).rstrip("/")
