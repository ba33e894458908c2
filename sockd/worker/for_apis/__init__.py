"""What the APIs use of the worker: requests, functions, packages, observations and the group."""
