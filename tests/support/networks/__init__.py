"""Private networks for tests: a host and an internet in namespaces, and attacks on what confines them."""
