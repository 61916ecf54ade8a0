"""Errors of the pipeline."""

from __future__ import annotations

from pathlib import Path


class PipelineError(Exception):
    """Error of a read, write or job for a reason that the user can act on.

    The message is one line that names the problem and the remedy, and never a password.

    :ivar transient: whether the problem may disappear by itself, as an unreachable broker may
    """

    def __init__(self, text: str, *, transient: bool = False) -> None:
        super().__init__(text)
        self.transient = transient


class SparkFailed(OSError):
    """Error of Spark itself, such as a full disk, too little memory, or an unreachable cluster. The message is one
    line; Spark's log has the details.
    """


def spark_failure(error: Exception, log: Path) -> SparkFailed | None:
    """Convert an error that Spark raised to a `SparkFailed` with a one-line message; return None for any other error.

    :param log: file that Spark's output is written to; the message names it if it exists
    """
    if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
        return None
    cause = getattr(error, "java_exception", None)
    message = str(error if cause is None else cause).strip() or type(error).__name__
    more = f"; more in {log}" if log.exists() else ""
    return SparkFailed(f"Spark failed: {message.splitlines()[0]}{more}")
