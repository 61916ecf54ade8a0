"""Why a change of users, virtual hosts and their like is refused: one line for whoever asked for it."""

from __future__ import annotations


class OperationRefused(Exception):
    """The change was not made. The text is one line: what is wrong, and with what."""


class ObjectNotFound(OperationRefused):
    """What should be changed is not there."""


class ObjectAlreadyExists(OperationRefused):
    """What should be made is there already."""
