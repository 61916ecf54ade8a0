"""Signatures and annotations of functions, of which names may exist for type checkers only.

Python 3.14 evaluates annotations when they are read, and raises NameError for a name that is imported under `TYPE_CHECKING`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, ForwardRef


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function. Annotations that cannot be evaluated are no error.

    :raises TypeError: if the object is not callable.
    :raises ValueError: if it has no signature, as some built-in functions.
    """
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)


def annotations_of(function: object) -> Mapping[str, Any]:
    """Return the annotations of a function by parameter name (and `return`); empty if it has none.

    An annotation that is a text, or that cannot be evaluated as a whole, is a text. One that can be evaluated in part
    contains a `ForwardRef`.
    """
    if sys.version_info >= (3, 14):
        from annotationlib import Format, get_annotations

        try:
            found = get_annotations(function, format=Format.FORWARDREF)
        except TypeError:
            return {}
        return {
            name: each.__forward_arg__ if isinstance(each, ForwardRef) else each
            for name, each in found.items()
        }
    known: Mapping[str, Any] = getattr(function, "__annotations__", {})
    return known


__all__ = ["annotations_of", "signature_of"]
