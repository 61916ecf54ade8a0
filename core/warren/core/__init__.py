"""Shared by every component and no part of AMQP: exit statuses, control client, log output, capture events."""
