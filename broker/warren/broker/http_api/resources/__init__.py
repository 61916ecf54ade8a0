"""Objects of the API by kind: functions that answer the requests for them."""
