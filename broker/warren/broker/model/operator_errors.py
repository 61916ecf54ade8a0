"""Why a change of users, virtual hosts and their like is refused: one line for whoever asked for it."""

from __future__ import annotations


class Refused(Exception):
    """The change was not made. The text is one line: what is wrong, and with what."""


class Missing(Refused):
    """What should be changed is not there."""


class Exists(Refused):
    """What should be made is there already."""
