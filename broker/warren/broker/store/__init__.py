"""The broker's store: the data folder with the write-ahead log, the streams, the definitions and the manifest."""
