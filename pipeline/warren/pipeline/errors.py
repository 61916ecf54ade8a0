"""The errors of the pipeline."""

from __future__ import annotations

from pathlib import Path


class PipelineError(Exception):
    """What was asked for cannot be done. One line: what is wrong and what to do, without a password.

    :ivar passing: whether it may be over by itself: a broker that is not there, or not any more
    """

    def __init__(self, text: str, *, transient: bool = False) -> None:
        super().__init__(text)
        self.transient = transient


class SparkFailed(OSError):
    """Spark could not do its part: a disk, memory, a cluster. One line; Spark's own log has the rest."""


def spark_failure(error: Exception, log: Path) -> SparkFailed | None:
    """What to say of an error that came out of Spark or of the way to it; None for any other.

    :param log: where Spark writes, if it was started for this
    """
    if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
        return None
    cause = getattr(error, "java_exception", None)
    told = str(error if cause is None else cause).strip() or type(error).__name__
    more = f"; more in {log}" if log.exists() else ""
    return SparkFailed(f"Spark failed: {told.splitlines()[0]}{more}")
