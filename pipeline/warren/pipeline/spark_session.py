"""The Spark session of a job: quiet, on loopback when it runs here, or a server's; one line says why it cannot be."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from warren.core.errors import UsageError, missing_extra_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA = 17
"""The oldest Java that Spark 4 runs on (its documentation, "Downloading")."""

INSTALL_JAVA = f"install Java {JAVA} or newer (Debian: apt install openjdk-{JAVA}-jre-headless)"


def check_spark(remote: str | None = None) -> None:
    """Make sure that Spark can start here: pyspark, and, unless it runs elsewhere, a Java that is new enough.

    :param remote: the server of Spark Connect that is to run it
    :raises UsageError: what to install, or what the server's address must look like
    """
    try:
        import pyspark.sql  # noqa: F401

        if remote is not None:
            import grpc  # noqa: F401
    except ImportError:
        raise missing_extra_error("spark", "warren pipeline") from None
    if remote is None:
        check_java()
    elif not re.fullmatch(r"sc://[^/]+(/.*)?", remote):
        raise UsageError(f"--remote is {remote!r}: write sc://host:15002")


def check_java() -> None:
    """:raises UsageError: if there is none, or an old one"""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        raise UsageError(f"Spark needs Java and there is none: {INSTALL_JAVA}")
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except OSError as error:
        where = f"the one that JAVA_HOME names ({home})" if home else java
        raise UsageError(
            f"Spark needs Java, and {where} does not run ({error.strerror}): {INSTALL_JAVA}"
        ) from None
    version = re.search(r'version "(?:1\.)?(\d+)', told.stderr)
    if version is None:
        raise UsageError(f"Spark needs Java, and {java} does not tell its version: {INSTALL_JAVA}")
    if int(version[1]) < JAVA:
        raise UsageError(f"Spark needs Java {JAVA}, and {java} is Java {version[1]}: {INSTALL_JAVA}")


@contextmanager
def spark_session(name: str, master: str, log: Path, remote: str | None = None) -> Iterator[SparkSession]:
    """The session of one job, in which times are in UTC and wrong values become null.

    It is the one that is active in this thread (a notebook, spark-submit), with its settings as they were
    afterwards; else one is started, and stopped at the end.

    :param master: `local[*]`, `spark://host:7077`, ...: what spark-submit calls --master
    :param log: takes what Spark and its Java write; nothing of it reaches the terminal
    :param remote: a server of Spark Connect, sc://host:15002, that runs it instead
    :raises UsageError: if Spark cannot start
    """
    check_spark(remote)
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    spark = running or (start(name, master, log) if remote is None else connect(remote))
    before = {setting: spark.conf.get(setting) for setting in MEANING}
    try:
        for setting, value in MEANING.items():
            spark.conf.set(setting, value)
        yield spark
    finally:
        if running is None:
            spark.stop()
        else:
            for setting, former in before.items():
                spark.conf.set(setting, former or "")


def start(name: str, master: str, log: Path) -> SparkSession:
    """Start Spark with its output in a file."""
    with quiet_pandas():
        from pyspark import SparkConf, SparkContext
        from pyspark.errors import PySparkRuntimeError
        from pyspark.java_gateway import launch_gateway
        from pyspark.sql import SparkSession

        settings = SparkConf(loadDefaults=False).setAppName(name).setMaster(master)
        settings.setAll([*QUIET.items(), *(LOCAL.items() if master.startswith("local") else ())])
        if master.startswith("local"):
            # Another Python than this one would lack Warren, and Spark refuses another minor version.
            os.environ["PYSPARK_PYTHON"] = sys.executable
        try:
            with log.open("wb") as output:
                gateway = launch_gateway(  # type: ignore[no-untyped-call]
                    conf=settings, popen_kwargs={"stdout": output, "stderr": output}
                )
            return SparkSession(SparkContext(conf=settings, gateway=gateway))
        except PySparkRuntimeError:
            raise UsageError(f"Spark did not start; what it said stands in {log}") from None
        except Exception as error:
            reason = str(getattr(error, "java_exception", error)).splitlines()[0]
            raise UsageError(f"Spark did not start with --master {master}: {reason}; more in {log}") from None


def connect(remote: str) -> SparkSession:
    """A session of a server of Spark Connect."""
    with quiet_pandas():
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession

        try:
            session = SparkSession.builder.remote(remote).create()
            session.version  # noqa: B018  asks the server
        except PySparkException as error:
            reason = str(error).strip().splitlines()[0]
            raise UsageError(f"there is no Spark Connect at {remote}: {reason}") from None
        return session


@contextmanager
def quiet_pandas() -> Iterator[None]:
    with warnings.catch_warnings():
        # pyspark[connect] asks for pandas without an upper bound, then warns of pandas 3; no job uses pandas.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        yield


MEANING = {"spark.sql.session.timeZone": "UTC", "spark.sql.ansi.enabled": "false"}
"""What a job's results depend on."""

QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
}

LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # A job here lasts seconds: the first tier of the compiler halves its processor time, and the messages come
    # from Python anyway, which is what a long one waits for.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # A shuffle partition is a task; on one machine more of them than cores only cost.
    "spark.sql.shuffle.partitions": str(min(os.cpu_count() or 1, 16)),
}
