"""Version check for classes that Spark pickles to executors: an executor without the same version of Warren fails with
a one-line error.
"""

from __future__ import annotations

import copyreg
import re
from abc import ABCMeta
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any


class VersionChecked(ABCMeta):
    """Metaclass of the data source's classes that Spark pickles to executors.

    Unpickling a class with this metaclass, or an object of it, checks that the machine has the Warren version that
    pickled it. Otherwise it raises an error named `PipelineError` that says what to install where. Spark reports it as
    an error of the task.
    """


def own_version() -> str:
    """Return the version of the installed distribution `warrenmq`; empty if Warren runs from its source folder, without
    an installation.
    """
    try:
        return version("warrenmq")
    except PackageNotFoundError:
        return ""


def explain_executor_error(error: str) -> str | None:
    """Explain in one sentence why the Python of an executor cannot run the data source, and what to install: a package
    is missing, or the Python versions differ.

    :param error: text of an error of Spark
    :return: the sentence; None if the error has another cause
    """
    wheel = "==".join(filter(None, ("warrenmq[spark]", own_version())))
    remedy = f"install {wheel} on every executor, in the Python that PYSPARK_PYTHON names"
    if found := re.search(r"No module named '(pyarrow|pyspark|warren)\b", error):
        return f"the Python of an executor lacks {found[1]}: {remedy}"
    if found := re.search(
        r"Python in worker has different version: (\S+) than that in driver: ([\d.]+)", error
    ):
        return f"the Python of an executor is {found[1]}, and the driver's is {found[2]}: {remedy}"
    return None


def make_loader() -> Callable[[str, str, str], Any]:
    """Return a function that loads a class with the metaclass `VersionChecked` on an executor, and checks the version
    there.

    The function takes the name of the module, the qualified name of the class and the version of Warren that pickled
    it, and returns the class. It raises an error named `PipelineError` if another version of Warren is installed on the
    executor, or the module or class is missing there. A version is not compared if either is empty: Warren then runs
    from its source folder.

    The function is nested so that cloudpickle sends its code. A module-level function would be sent as a name and
    looked up in Warren, which may be missing on the executor.
    """

    def load(module: str, name: str, wanted: str) -> Any:
        import importlib
        import socket
        import sys
        from importlib.metadata import PackageNotFoundError, version

        place = f"{sys.executable} on {socket.gethostname()}"
        wheel = f"warrenmq[spark]=={wanted}" if wanted else "warrenmq[spark]"
        remedy = f"install {wheel} on every executor, in the Python that PYSPARK_PYTHON names"
        error = type("PipelineError", (RuntimeError,), {})
        try:
            found = version("warrenmq")
        except PackageNotFoundError:  # none, or sources on a path, which carry no version
            found = ""
        if found and wanted and found != wanted:
            raise error(f"{place} has Warren {found}, but the job was started with {wanted}: {remedy}")
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as missing:
            raise error(f"{place} lacks {missing.name}: {remedy}") from None

    return load


def reduce_class(pickled_class: type) -> tuple[Any, ...]:
    """Return the form in which pickle stores a class with the metaclass `VersionChecked`: the function that loads the
    class, and its arguments (module and name of the class, and Warren's version).
    """
    return make_loader(), (pickled_class.__module__, pickled_class.__qualname__, own_version())


copyreg.pickle(VersionChecked, reduce_class)
