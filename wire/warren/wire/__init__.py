"""AMQP 0-9-1 codec: bytes to values and back, without any I/O (sans-I/O)."""
