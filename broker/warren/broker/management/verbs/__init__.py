"""Verbs of the control socket, one module for each subject. RabbitMQ's rabbitmqctl documents the verbs of the same name."""
