"""Texts of exceptions for logs, dead letters and error replies; whatever an exception's own methods do, there is a text."""

from __future__ import annotations


def exception_text(error: BaseException) -> str:
    """Return the text of an exception. It can be encoded as UTF-8: lone surrogates are escaped.

    If `__str__` of the exception raises, the text says so.
    """
    try:
        text = str(error)
        return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")
    except BaseException as problem:
        return f"(no text: its __str__ raised {type(problem).__name__})"


def describe_exception(error: BaseException) -> str:
    """Return the type and text of an exception: `ValueError: no such order`."""
    return f"{type(error).__name__}: {exception_text(error)}"
