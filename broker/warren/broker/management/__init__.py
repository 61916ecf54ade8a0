"""What operators see and do: the control socket, its verbs, definitions in RabbitMQ's format."""
