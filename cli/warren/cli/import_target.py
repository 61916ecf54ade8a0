"""Import of the object that `module:name` names on a command line, also from the current folder."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from warren.core.errors import UsageError
from warren.core.signatures import signature_of

Wanted = TypeVar("Wanted")


def load_object(target: str, kind: type[Wanted], what: str) -> Wanted:
    """Import the object that `module:name` names.

    If only `module` is given, it must contain exactly one object of this type. If the name is a function without
    parameters, it is called, and its result is the object.

    :param target: `module:name`, `module:name.attribute` or `module`
    :param kind: required type of the object
    :param what: name of the type in error texts, with its article: `an App`
    :raises UsageError: if the module cannot be imported, or there is no such object
    """
    module_name, _, path = target.partition(":")
    module = _import(module_name)
    if not path:
        found = {name: each for name, each in vars(module).items() if isinstance(each, kind)}
        distinct = {id(each): each for each in found.values()}
        if len(distinct) != 1:
            names = f"it has {', '.join(found)}" if found else "it has none"
            raise UsageError(
                f"{what} of the module {module_name!r} must be named as {module_name}:NAME; {names}"
            )
        return next(iter(distinct.values()))
    value: Any = module
    for name in path.split("."):
        try:
            value = getattr(value, name)
        except AttributeError:
            raise UsageError(f"the module {module_name!r} has no {path!r}{_hint(module, kind)}") from None
    if not isinstance(value, kind) and callable(value) and not isinstance(value, type):
        value = _call_factory(target, value, what, module, kind)
    if not isinstance(value, kind):
        raise UsageError(f"{target} is not {what}, but of type {type(value).__name__}")
    return value


def _call_factory(target: str, factory: Callable[..., Any], what: str, module: Any, kind: type) -> Any:
    """Return the result of a function without parameters.

    :raises UsageError: if it needs arguments
    """
    with contextlib.suppress(ValueError):  # Some built-in functions have no signature.
        try:
            signature_of(factory).bind()
        except TypeError:
            raise UsageError(
                f"{target} is not {what}, but a function with parameters{_hint(module, kind)}"
            ) from None
    return factory()


def _hint(module: Any, kind: type) -> str:
    there = [each for each, held in vars(module).items() if isinstance(held, kind)]
    return f"; it has {', '.join(there)}" if there else ""


def load_class(target: str, base: type[Wanted], what: str) -> type[Wanted]:
    """Import the class that `module:Name` names.

    :param target: `module:Name`
    :param base: required base class
    :param what: name of such a class in error texts, with its article
    :raises UsageError: if the module cannot be imported, or there is no such class
    """
    module_name, _, name = target.partition(":")
    module = _import(module_name)
    value = getattr(module, name, None) if name else None
    if not isinstance(value, type) or not issubclass(value, base):
        there = [
            each
            for each, held in vars(module).items()
            if isinstance(held, type) and issubclass(held, base) and held.__module__ == module.__name__
        ]
        hint = f"; {module_name} has {', '.join(there)}" if there else ""
        if name and value is None:
            raise UsageError(f"the module {module_name!r} has no {name!r}{hint}")
        raise UsageError(f"{target} is not {what}{hint}")
    return value


def _import(name: str) -> Any:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    if not name or name.endswith(".py") or "/" in name:
        shown = name.removesuffix(".py").replace("/", ".") or "module"
        raise UsageError(f"{name!r} is not a module name; write {shown}:app, as in `import {shown}`")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UsageError(
                f"there is no module {name!r} in {here} or among the installed packages"
            ) from None
        raise UsageError(f"cannot import {name!r}: {error}") from None
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        text = " ".join(str(error).split())
        raise UsageError(
            f"cannot import {name!r}: {type(error).__name__}: {text} ({at.filename}, line {at.lineno})"
        ) from error
