"""Comparison of the HTTP API with that of RabbitMQ's management plugin, answer by answer."""
