"""Errors of management operations on users, virtual hosts, parameters and the like."""

from __future__ import annotations


class OperationRefused(Exception):
    """A management operation was refused. The text is one line that names the object and the reason."""


class ObjectNotFound(OperationRefused):
    """The object of a management operation does not exist."""


class ObjectAlreadyExists(OperationRefused):
    """The object that a management operation should add exists already."""
