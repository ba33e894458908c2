"""L2: what Linux offers, as small typed wrappers: system calls, mounts, cgroups, pidfds, seccomp, packets of messages.

This room knows nothing of sandboxes, Zygotes, limits' values or configuration; it imports nothing of ours but
`sockd.base.errors`. Whatever is strange about the kernel is said here, where it bites, so that the rooms above need not know
whether a host has cgroups v1, v2 or both.
"""
