"""A small S3 for development, tests and benchmarks: objects in a directory, every request's signature verified, faults on demand.

Owns its directory and its threads. Imports nothing of ours, so that anything may start it: `python -m benchmarks.s3 DIR`.
Knows nothing of users, policies, versions or regions; it is no place for data that must not be lost (it never syncs).
"""
