"""A function's code: archives, the code store, settings in a directory, entry points."""
