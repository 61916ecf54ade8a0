"""Write-ahead log of queue messages: record format, appending, group commit, compaction, recovery."""
