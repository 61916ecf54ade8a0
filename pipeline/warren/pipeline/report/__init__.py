"""HTML reports of the jobs: page, charts, formatting."""
