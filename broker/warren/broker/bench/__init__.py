"""The load tool: drives any AMQP 0-9-1 broker to its limit, says what it cost and whether it was right."""
