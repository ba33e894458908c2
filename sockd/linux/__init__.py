"""What Linux offers, as small typed wrappers: system calls, mounts, cgroups, pidfds, seccomp, packets of messages.

This area knows nothing of sandboxes, Zygotes, limits' values or configuration. It describes what is unusual about the kernel
where it matters, so that the areas above need not know whether a host has cgroups v1, v2 or both.
"""
