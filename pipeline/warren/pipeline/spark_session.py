"""Spark session of a job: a new one in this process, the one that is active already, or one on a Spark Connect
server.
"""

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

MIN_JAVA = 17
"""Oldest Java version that Spark 4 supports (Spark documentation, "Downloading")."""

INSTALL_JAVA = f"install Java {MIN_JAVA} or newer (Debian: apt install openjdk-{MIN_JAVA}-jre-headless)"


def check_spark(remote: str | None = None) -> None:
    """Check that Spark can start: pyspark is installed and, unless a remote server runs the job, a recent Java.

    :param remote: address of the Spark Connect server that is to run the job
    :raises UsageError: with what to install, or the form of the server's address
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
    """Check that a Java of at least `MIN_JAVA` is installed.

    :raises UsageError: if Java is missing or too old
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        raise UsageError(f"Spark needs Java and there is none: {INSTALL_JAVA}")
    try:
        version_output = subprocess.run(
            [java, "-version"], capture_output=True, text=True, errors="replace", timeout=30, check=False
        )
    except OSError as error:
        where = f"the one that JAVA_HOME names ({home})" if home else java
        raise UsageError(
            f"Spark needs Java, and {where} does not run ({error.strerror}): {INSTALL_JAVA}"
        ) from None
    version = re.search(r'version "(?:1\.)?(\d+)', version_output.stderr)
    if version is None:
        raise UsageError(f"Spark needs Java, and {java} does not report its version: {INSTALL_JAVA}")
    if int(version[1]) < MIN_JAVA:
        raise UsageError(f"Spark needs Java {MIN_JAVA}, and {java} is Java {version[1]}: {INSTALL_JAVA}")


@contextmanager
def spark_session(name: str, master: str, log: Path, remote: str | None = None) -> Iterator[SparkSession]:
    """Provide the session of one job: times are in UTC, and invalid casts give null.

    The session is the one that is active in this thread (a notebook, spark-submit), whose settings are restored at the
    end. Otherwise a session is started, and stopped at the end.

    :param name: name of the application, which Spark's own pages show
    :param master: value of spark-submit's `--master`: `local[*]`, `spark://host:7077`, ...
    :param log: file for the output of Spark and its Java process; nothing of it reaches the terminal
    :param remote: Spark Connect server that runs the job instead, `sc://host:15002`
    :raises UsageError: if Spark cannot start
    """
    check_spark(remote)
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    spark = active or (start_spark(name, master, log) if remote is None else connect_spark(remote))
    previous_settings = {setting: spark.conf.get(setting) for setting in RESULT_SETTINGS}
    try:
        for setting, value in RESULT_SETTINGS.items():
            spark.conf.set(setting, value)
        yield spark
    finally:
        if active is None:
            spark.stop()
        else:
            for setting, former in previous_settings.items():
                spark.conf.set(setting, former or "")


def start_spark(name: str, master: str, log: Path) -> SparkSession:
    """Start a Spark session in this process, whose output goes to the file `log`.

    :param name: name of the application
    :param master: value of spark-submit's `--master`
    :raises UsageError: if Spark cannot start
    """
    with quiet_pandas():
        from pyspark import SparkConf, SparkContext
        from pyspark.errors import PySparkRuntimeError
        from pyspark.java_gateway import launch_gateway
        from pyspark.sql import SparkSession

        settings = SparkConf(loadDefaults=False).setAppName(name).setMaster(master)
        settings.setAll(
            [*QUIET_SETTINGS.items(), *(LOCAL_SETTINGS.items() if master.startswith("local") else ())]
        )
        if master.startswith("local"):
            # Another Python may lack Warren, and Spark refuses another minor version.
            os.environ["PYSPARK_PYTHON"] = sys.executable
        try:
            with log.open("wb") as output:
                gateway = launch_gateway(  # type: ignore[no-untyped-call]
                    conf=settings, popen_kwargs={"stdout": output, "stderr": output}
                )
            return SparkSession(SparkContext(conf=settings, gateway=gateway))
        except PySparkRuntimeError:
            raise UsageError(f"Spark did not start; its output is in {log}") from None
        except Exception as error:
            reason = str(getattr(error, "java_exception", error)).splitlines()[0]
            raise UsageError(f"Spark did not start with --master {master}: {reason}; more in {log}") from None


def connect_spark(remote: str) -> SparkSession:
    """Open a session on a Spark Connect server.

    :param remote: address of the server, `sc://host:15002`
    :raises UsageError: if no server answers there
    """
    with quiet_pandas():
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession

        try:
            session = SparkSession.builder.remote(remote).create()
            session.version  # noqa: B018  sends a request to the server
        except PySparkException as error:
            reason = str(error).strip().splitlines()[0]
            raise UsageError(f"there is no Spark Connect at {remote}: {reason}") from None
        return session


@contextmanager
def quiet_pandas() -> Iterator[None]:
    """Suppress Spark's warning about the installed pandas version."""
    with warnings.catch_warnings():
        # pyspark[connect] requires pandas without an upper bound, then warns about pandas 3; no job uses pandas.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        yield


RESULT_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "false",
    # Spark's default is INT96, which other readers convert to nanoseconds: years before 1677 and after 2262 overflow.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
"""Spark settings on which a job's results depend; they are set for the run."""

QUIET_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
}

LOCAL_SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # A local job lasts seconds: the first compiler tier halves its processor time, and a longer job waits for Python,
    # which delivers the messages.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # A shuffle partition is a task; on one machine more tasks than cores only add overhead.
    "spark.sql.shuffle.partitions": str(min(os.cpu_count() or 1, 16)),
}
