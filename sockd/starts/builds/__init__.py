"""Builds of packages from source, in sandboxes."""
