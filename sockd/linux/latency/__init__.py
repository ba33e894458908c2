"""Optimizations of the plain way: each part is one file with one switch in `[latency]` and a row in docs/performance.md.

Deleting a part is deleting its file, its switch, and its lines in `latency.py`.
"""
