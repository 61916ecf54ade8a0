"""Users and what they may do. Knows no sockets: the session asks, commands change."""
