"""Protections of a worker, and how each is taken away (`tests.support.broken` runs a worker without one)."""
