"""A RabbitMQ-compatible AMQP 0-9-1 broker in typed Python: `async with Broker() as broker: broker.url`."""

from warren.broker.broker import Broker
from warren.broker.configuration.config import BrokerConfig
from warren.broker.model.virtual_clock import VirtualClock
from warren.broker.store.errors import StoreError

__all__ = ["Broker", "BrokerConfig", "StoreError", "VirtualClock"]
