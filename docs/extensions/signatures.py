"""Griffe extension for the reference: values of constants in signatures, inherited docstrings, and highlighted examples."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from typing import Any

import griffe


class ReadableSignatures(griffe.Extension):
    """Show `window: int = 1000` instead of `window: int = WINDOW`, and indented examples as Python code."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Change all functions and docstrings of a package that has been loaded."""
        for member in list(_members(pkg)):
            if isinstance(member, griffe.Class):
                _inherit_docstrings(member)
            if isinstance(member, griffe.Function):
                for parameter in member.parameters:
                    parameter.default = _value(member, parameter.default)
            if member.docstring is not None:
                member.docstring.value = fence_examples(member.docstring.value)


def fence_examples(text: str) -> str:
    """Put the indented blocks of a docstring between fences, so that they are highlighted as Python.

    A block is indented by four characters and has an empty line before it. The lines that continue a `:param` have none.
    """
    lines: list[str] = []
    block: list[str] = []
    for line in [*text.split("\n"), "."]:
        if line.startswith("    ") and (block or (lines and not lines[-1].strip())):
            block.append(line)
        elif block and not line.strip():
            block.append("")
        elif block:
            code = textwrap.dedent("\n".join(block)).strip("\n")
            lines += ["```python", *code.split("\n"), "```", "", line]
            block = []
        else:
            lines.append(line)
    return "\n".join(lines[:-1])


def _members(parent: griffe.Object) -> Iterator[griffe.Object]:
    for member in parent.members.values():
        if isinstance(member, griffe.Object):
            yield member
            yield from _members(member)


def _inherit_docstrings(child: griffe.Class) -> None:
    """Give public members without a docstring that of the member which they override: `retryable` of an error."""
    silent = [
        m for m in child.members.values() if isinstance(m, griffe.Object) and m.is_public and not m.docstring
    ]
    if not silent:
        return
    try:
        bases = child.mro()
    except (ValueError, griffe.GriffeError):
        return
    for member in silent:
        for base in bases:
            text = _documented(base, member.name)
            if text:
                member.docstring = griffe.Docstring(text, parent=member)
                break


def _documented(base: griffe.Class, name: str) -> str:
    """Return the docstring of a member of a class, or its `:ivar` in the docstring of the class; empty if there is none."""
    member = base.members.get(name)
    if isinstance(member, griffe.Object) and member.docstring:
        return member.docstring.value
    described = (
        re.search(rf":ivar {name}: (.*?)(?=\n:|\n\n|\Z)", base.docstring.value, re.S)
        if base.docstring
        else None
    )
    return described[1][0].upper() + textwrap.dedent(described[1][1:]) if described else ""


def _value(function: griffe.Function, default: str | griffe.Expr | None) -> str | griffe.Expr | None:
    """Return the literal that a constant in capitals stands for; every other default is returned unchanged."""
    if not isinstance(default, griffe.ExprName) or not default.name.isupper():
        return default
    try:
        constant = function.modules_collection[default.canonical_path]
        value = constant.value if isinstance(constant, griffe.Attribute) else None
    except (KeyError, griffe.GriffeError):
        return default
    # A literal is text in griffe's tree; a name or a call is an expression.
    return value if isinstance(value, str) else default
