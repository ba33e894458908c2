"""Commands for the worker: start it, its state, settings, keys, packages and backups."""
