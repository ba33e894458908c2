"""Functions of the worker's own, which it runs in sandboxes: builds, and trials of Zygotes."""
