"""The management doors of `run.sock`."""
