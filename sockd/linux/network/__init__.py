"""Networks of the kernel: netlink, network namespaces, loopback, owners of sockets."""
