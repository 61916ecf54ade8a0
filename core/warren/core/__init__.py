"""Code that every component shares: exit statuses, control-socket client, log set-up, capture events."""
