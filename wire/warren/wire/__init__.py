"""AMQP 0-9-1 bytes and values, both directions, without input or output."""
