"""Management of a broker: control socket, its verbs, and definitions in RabbitMQ's format."""
