"""Publishing: confirm window, bulk publishing, returns, transactions."""
