"""What a virtual host holds: exchanges, queues and messages. No sockets, no files."""
