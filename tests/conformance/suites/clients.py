"""Test suites of public clients, one value each."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.conformance.suites.suite import Suite, Target

PYTEST = ("-m", "pytest", "-q", "-rfE", "--tb=short", "-p", "no:cacheprovider")


# -- pika


def at_this_port(folder: Path, target: Target) -> None:
    """pika's tests expect the broker at port 5672 of this machine."""
    for path in (folder / "tests").rglob("*.py"):
        path.write_text(path.read_text().replace("5672", str(target.port)))


PIKA = Suite(
    name="pika",
    repository="https://github.com/pika/pika",
    requires=("pytest", "pytest-timeout", "twisted", "tornado", "gevent"),
    command=(*PYTEST, "tests/acceptance"),
    prepare=at_this_port,
)


# -- py-amqp and kombu


def at_this_address(target: Target) -> Mapping[str, str]:
    return {
        "RABBITMQ_HOST": "127.0.0.1",
        "RABBITMQ_5672_TCP": str(target.port),
        "RABBITMQ_5671_TCP": str(target.tls_port),
    }


def with_our_certificates(folder: Path, target: Target) -> None:
    """Copy the target's certificates into the suite, whose own ones do not match the server's."""
    certificates = folder / "t/certs"
    shutil.copy(target.authority, certificates / "ca_certificate.pem")
    for name, end in (("client", ""), ("stranger", "_broken")):
        certificate, key = target.certificate(name)
        shutil.copy(certificate, certificates / f"client_certificate{end}.pem")
        shutil.copy(key, certificates / f"client_key{end}.pem")


PY_AMQP = Suite(
    name="py-amqp",
    repository="https://github.com/celery/py-amqp",
    requires=("vine", "pytest", "pytest-timeout", "pytest-rerunfailures"),
    command=(*PYTEST, "-E", "rabbitmq", "t/integration"),
    environment=at_this_address,
    prepare=with_our_certificates,
    exceptions={
        "test_tls_default_certs": "asks a server on the internet, and no broker",
        "test_tls_no_default_certs_fails": "asks a server on the internet, and no broker",
    },
)
KOMBU = Suite(
    name="kombu",
    repository="https://github.com/celery/kombu",
    requires=(
        "amqp",
        "vine",
        "tzdata",
        "packaging",
        "pytest",
        "pytest-timeout",
        "pytest-rerunfailures",
        "redis",
    ),
    command=(*PYTEST, "-E", "py-amqp", "t/integration/test_py_amqp.py"),
    environment=at_this_address,
)


# -- aiormq and aio-pika

NO_DOCKER = '''"""Written by the conformance suites: the broker runs already, no container is needed."""
import os
from dataclasses import dataclass, field


class DockerNotAvailableError(Exception):
    pass


@dataclass
class DockerHostInfo:
    is_tcp: bool = False


@dataclass
class ContainerInfo:
    id: str
    ports: dict = field(default_factory=dict)
    host: str = "127.0.0.1"


def check_docker_available():
    return DockerHostInfo()


class DockerClient:
    def __init__(self, info=None):
        pass

    def run(self, image, ports, environment=None):
        known = {"5672/tcp": int(os.environ["BROKER_PORT"]), "5671/tcp": int(os.environ["BROKER_TLS_PORT"])}
        return ContainerInfo("broker", {port: known.get(port, 1) for port in ports})

    def kill(self, container_id):
        pass

    def remove(self, container_id):
        pass
'''


def without_docker(folder: Path, target: Target) -> None:
    (folder / "tests/docker_client.py").write_text(NO_DOCKER)
    for path in (folder / "tests").glob("*.py"):
        # Some tests name the usual ports themselves; as keys of the container's ports they stay.
        text = re.sub(r"\b5671\b(?!/tcp)", str(target.tls_port), path.read_text())
        path.write_text(re.sub(r"\b5672\b(?!/tcp)", str(target.port), text))
    certificates = folder / "tests/certs"
    if certificates.exists():
        certificate, key = target.certificate("client")
        shutil.copy(target.authority, certificates / "ca.pem")
        shutil.copy(certificate, certificates / "client.pem")
        shutil.copy(key, certificates / "client.key")


def at_these_ports(target: Target) -> Mapping[str, str]:
    return {"BROKER_PORT": str(target.port), "BROKER_TLS_PORT": str(target.tls_port)}


AIORMQ = Suite(
    name="aiormq",
    repository="https://github.com/mosquito/aiormq",
    requires=(
        "aiormq",
        "pamqp>=4,<5",
        "yarl",
        "pytest",
        "pytest-timeout",
        "aiomisc>=18",
        "aiomisc-pytest>=2",
    ),
    command=(*PYTEST, "tests"),
    environment=at_these_ports,
    prepare=without_docker,
)
AIO_PIKA = Suite(
    name="aio-pika",
    repository="https://github.com/mosquito/aio-pika",
    requires=(
        *(
            "aio-pika",
            "aiormq>=7.2,<8",
            "yarl",
            "pytest",
            "pytest-timeout",
            "aiomisc>=18",
            "aiomisc-pytest>=2",
        ),
        *("shortuuid", "timeout-decorator"),
    ),
    command=(*PYTEST, "tests"),
    environment=at_these_ports,
    prepare=without_docker,
    exceptions={"test_leak_unclosed_channel": "counts the client's own objects; fails with RabbitMQ as well"},
    timeout=1800.0,
)


# -- Celery


def as_broker(target: Target) -> Mapping[str, str]:
    return {"CELERY_BROKER": target.url + "/"}


CELERY = Suite(
    name="celery",
    requires=("celery", "pytest", "pytest-timeout"),
    command=(*PYTEST, "-c", "celery_tests.ini", "--timeout", "120", "celery_with_rpc.py"),
    environment=as_broker,
)

SUITES = {suite.name: suite for suite in (PIKA, PY_AMQP, KOMBU, AIORMQ, AIO_PIKA, CELERY)}
