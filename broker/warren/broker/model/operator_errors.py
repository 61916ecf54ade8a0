"""Errors of management operations on users, virtual hosts, parameters and the like."""

from __future__ import annotations


class OperationRefused(Exception):
    """The operation was not carried out. The text is one line that names the object and the reason."""


class ObjectNotFound(OperationRefused):
    """The object of the operation does not exist."""


class ObjectAlreadyExists(OperationRefused):
    """The object that should be added exists already."""
