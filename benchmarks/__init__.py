"""Benchmarks: they speak HTTP and the command line, import nothing of sockd, print a table and write JSON."""
