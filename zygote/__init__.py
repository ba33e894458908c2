"""The code that runs inside the farm: the Zygote that forks, and the handler server that its children become.

Everything here is public to user code, runs before it and with it, and is written in the standard library alone: each
module that is imported here is memory that every fork copies page tables for (16 µs a MB), so the diet is a test.
Nothing here trusts what comes from user code, and nothing of the host is reachable from here.
"""
