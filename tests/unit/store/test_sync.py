"""When the log is synced, as the operator chooses."""

from __future__ import annotations

from tests.unit.store.disk import Disk
from tests.unit.store.node import Node
from tests.unit.store.test_log import acknowledge, publish
from warren.broker.store.log.group_commit import Sync


def test_off_syncs_nothing_and_survives_a_killed_process() -> None:
    node = Node(Disk(), segment_size=600, sync=Sync.OFF)
    before = node.disk.syncs
    publish(node, 1, 40)
    node.settle()
    assert node.synced, "what is written counts"
    assert node.disk.syncs == before
    assert set(Node(node.kill()).messages()) == set(range(1, 41))


def test_always_has_acknowledgements_wait_for_nothing() -> None:
    node = Node(Disk(), sync=Sync.ALWAYS, ack_delay=60.0)
    publish(node, 1, 3)
    node.sync()
    acknowledge(node, 1, 2)
    node.settle()
    assert set(Node(node.kill()).messages()) == {3}


def test_batch_has_acknowledgements_wait_for_company() -> None:
    node = Node(Disk(), ack_delay=60.0)
    publish(node, 1, 3)
    node.sync()
    acknowledge(node, 1, 2)
    for _ in range(20):
        node.step()
    assert set(Node(node.kill()).messages()) == {1, 2, 3}


def test_what_only_makes_room_in_memory_is_written_and_not_synced() -> None:
    node = Node(Disk())
    before = node.disk.syncs
    place = node.log.spill(node.queue(), 1, b"head", b"content")
    node.settle()
    assert node.disk.syncs == before
    assert node.log.lookup.payloads(node.queue(), [(1, place)]) == [b"headcontent"]
    publish(node, 2, 2)
    node.settle()
    assert set(Node(node.kill()).messages()) == {2}
