"""Write-ahead log of messages: format, writer, compaction, recovery."""
