"""Remote procedure calls: requests that are answered, once or by many, and errors that are replies."""
