"""Prometheus endpoint: the broker's metrics under the names of RabbitMQ's plugin `rabbitmq_prometheus`, and Warren's own."""
