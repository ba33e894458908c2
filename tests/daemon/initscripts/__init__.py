"""Initscripts, and what functions read of what they fetch."""
