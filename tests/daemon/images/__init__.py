"""Functions in container images."""
