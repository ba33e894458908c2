"""Cgroups of both versions: hierarchies, sockd's tree in them, and its leaves."""
