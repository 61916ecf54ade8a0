"""Celery next door: send tasks to Celery workers, and run tasks that Celery clients send, on the same broker. The bridge
speaks Celery's message protocol 2 in JSON, with results over AMQP (`rpc://`); it does not import Celery."""

from warren.patterns.celery.bridge import CeleryBridge, CeleryBridgeStatistics
from warren.patterns.celery.remote_task import CeleryOptions, CeleryTask
from warren.patterns.celery.results import CeleryResult, CeleryState, CeleryTaskError
from warren.patterns.celery.task_message import CeleryRequest, current_request
from warren.patterns.celery.topology import CeleryQueue, celery_queue

__all__ = [
    "CeleryBridge",
    "CeleryBridgeStatistics",
    "CeleryOptions",
    "CeleryQueue",
    "CeleryRequest",
    "CeleryResult",
    "CeleryState",
    "CeleryTask",
    "CeleryTaskError",
    "celery_queue",
    "current_request",
]
