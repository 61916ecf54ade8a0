"""AMQP methods of a channel that are not on the hot path."""
