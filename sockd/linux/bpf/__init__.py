"""eBPF programs of a cgroup: what its processes may bind and connect to, and how many sockets they have."""
