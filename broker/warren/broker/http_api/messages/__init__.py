"""Messages of queues, shown and moved one by one: pages, filters, causes of dead letters, moves and replays."""
