"""HTTP API of the broker: RabbitMQ's management API, under its paths (https://www.rabbitmq.com/docs/management#http-api)."""
