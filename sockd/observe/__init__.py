"""Observability: logs, traces, metrics, and the export of spans."""
