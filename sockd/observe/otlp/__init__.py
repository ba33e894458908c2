"""Spans for an OpenTelemetry collector: a process of its own exports them, since the SDK's threads would hold up the loop."""
