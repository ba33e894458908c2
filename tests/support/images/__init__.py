"""Images of containers for tests: trees, layouts, registries, chunk stores, and readers of what sockd writes."""
