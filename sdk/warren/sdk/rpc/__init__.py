"""Remote procedure calls: requests and replies, scatter-gather to many servers, and errors sent as replies."""
