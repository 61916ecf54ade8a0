"""Columns of listings such as `list_queues`, which RabbitMQ calls items, under RabbitMQ's names."""
