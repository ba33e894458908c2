"""sockd: a serverless platform for Python on one Linux machine. ARCHITECTURE.md says which room holds what."""
