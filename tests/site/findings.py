"""Findings of the checks of the built documentation."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """Defect of a page.

    :ivar page: path of the page in the site.
    :ivar view: width and colour scheme with which the page was looked at, such as `390 px, dark`; empty if neither matters.
    :ivar defect: one line that says what is wrong, and where on the page.
    """

    page: str
    view: str
    defect: str

    def __str__(self) -> str:
        return f"{self.page}{f' ({self.view})' if self.view else ''}: {self.defect}"
