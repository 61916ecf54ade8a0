"""A real file system that is frozen (`fsfreeze`) under a broker process: it answers everything that needs no disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pamqp.commands import Basic

from tests.support.blocking_client import Connection
from tests.support.broker_process import PATIENT, BrokerProcess
from tests.support.operator_cli import warren_ctl
from tests.support.polling import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.processes]


class Mount:
    """An ext4 file system in a file, mounted at a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.frozen = False

    def freeze(self) -> None:
        subprocess.run(["fsfreeze", "-f", self.folder], check=True)
        self.frozen = True

    def thaw(self) -> None:
        if self.frozen:
            subprocess.run(["fsfreeze", "-u", self.folder], check=True)
            self.frozen = False


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    tools = ("mkfs.ext4", "mount", "umount", "fsfreeze")
    if os.geteuid() != 0 or not all(shutil.which(tool) for tool in tools):
        pytest.skip("only root can mount and freeze a file system")
    image, folder = tmp_path / "image", tmp_path / "mounted"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(128 * 1024 * 1024)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    mounted = subprocess.run(["mount", "-o", "loop", image, folder], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    mount = Mount(folder)
    try:
        yield mount
    finally:
        mount.thaw()
        subprocess.run(["umount", folder], check=True)


@pytest.fixture
def broker(mount: Mount) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(mount.folder / "data", *PATIENT, "--disk-free-limit", "0")
    broker.start()
    try:
        yield broker
    finally:
        mount.thaw()
        with contextlib.suppress(AssertionError):
            broker.stop()


def test_a_broker_on_a_frozen_file_system(broker: BrokerProcess, mount: Mount) -> None:
    operator = warren_ctl(broker.data_dir)
    with Connection(broker.url) as publishing, Connection(broker.url) as other:
        channel, quiet = publishing.channel(), other.channel()
        channel.declare("q", durable=True)
        channel.confirm()
        channel.publish("q", b"before", delivery_mode=2)
        assert channel.settled(1) == [True]
        mount.freeze()
        channel.publish("q", b"meanwhile", delivery_mode=2)
        name = quiet.declare("", exclusive=True)
        child = broker.child
        assert child is not None
        wait_until(lambda: "event=store.sync_delayed" in child.errors, "the broker notices the frozen disk")
        quiet.publish(name, b"transient")
        assert quiet.drain(name) == [b"transient"]
        refused = operator("-q", "check_local_alarms")
        assert refused.status == 1, refused
        assert refused.errors.startswith("warren ctl: the disk has not answered for ")
        # What the broker has sent to the publisher has arrived before this reply.
        assert channel.ready("q") == 2
        assert not channel.events
        mount.thaw()
        assert channel.next_method(Basic.Ack).delivery_tag == 2
    broker.kill()
    broker.start()
    with Connection(broker.url) as connection:
        assert connection.channel().drain("q") == [b"before", b"meanwhile"]
