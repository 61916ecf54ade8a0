"""Management page: a web application in static files, which asks the HTTP API."""
