"""Back end that asks an access-control service over HTTP, as RabbitMQ's rabbitmq_auth_backend_http does."""
