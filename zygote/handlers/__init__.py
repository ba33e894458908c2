"""The handler server: a function's code as something that answers requests."""
