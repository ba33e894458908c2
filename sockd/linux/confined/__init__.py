"""Confined processes of ours: each has an own uid, tree and cgroup, no capability, and a seccomp filter."""
