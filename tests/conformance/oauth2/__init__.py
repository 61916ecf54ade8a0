"""Access decisions by OAuth 2 tokens, compared with RabbitMQ."""
