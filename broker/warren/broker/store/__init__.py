"""The broker's store: the data folder with the write-ahead log of messages, the streams and the definitions."""
