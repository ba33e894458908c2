"""The clients of a worker: the command line, and `sockd.function` for Python programs."""
