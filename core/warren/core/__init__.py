"""Code that all components share: exit statuses, client of the control socket, log set-up, names of message events."""
