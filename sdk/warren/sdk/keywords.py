"""Texts of the errors for unknown keywords, with the keyword that was probably meant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from inspect import Parameter, signature


def describe_unknown(
    owner: str, names: Iterable[str], known: Iterable[str], kind: str, more: str = ""
) -> str:
    """Return the text of the error for an unknown keyword; with several, for the first of them.

    :param owner: who was given the keyword, such as `app.handle`.
    :param names: the unknown keywords, at least one.
    :param known: the keywords that exist.
    :param kind: `option` or `keyword`.
    :param more: what is taken beside them, for the end of the list.
    """
    name, known = next(iter(names)), list(known)
    close = get_close_matches(name, known, n=1)
    remedy = f"did you mean {close[0]}=?" if close else f"it takes {', '.join(known)}{more}"
    return f"{owner} has no {kind} {name!r}: {remedy}"


def describe_unknown_class_keyword(cls: type, keywords: Mapping[str, object], more: str = "") -> str:
    """Return the text of the error for a class keyword that no base of the class takes.

    :param keywords: the keywords that are left when all bases have taken theirs, at least one.
    :param more: what is taken beside the keywords of the bases, for the end of the list.
    """
    known = [
        parameter.name
        for base in cls.__mro__
        if isinstance(base.__dict__.get("__init_subclass__"), classmethod)
        for parameter in signature(base.__init_subclass__).parameters.values()
        if parameter.kind is Parameter.KEYWORD_ONLY
    ]
    return describe_unknown(f"class {cls.__name__}", keywords, known, "keyword", more)
