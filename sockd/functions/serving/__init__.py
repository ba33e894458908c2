"""Requests of functions: admission, the gate of starts, sandboxes that are provisioned or leased, deadlines, debugging."""
