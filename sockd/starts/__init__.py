"""SOCK's three caches; each one saves part of a cold start (SOCK, ATC '18, section 4).

The **install cache** (`packages`) downloads, unpacks and byte-compiles each wheel once, into a directory that all sandboxes see
read-only. The **import cache** (`zygotes`) keeps interpreters that have already imported sets of those packages, and forks
sandboxes from them. The **handler cache** (`handler_cache`) keeps idle sandboxes of a function, paused, for its next request.
"""
