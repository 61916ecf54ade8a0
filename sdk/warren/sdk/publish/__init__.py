"""Publishing: publisher confirms, bulk publishing, transactions, returned messages."""
