"""Model of a virtual host: exchanges, queues, streams, policies. It opens no sockets and no files."""
