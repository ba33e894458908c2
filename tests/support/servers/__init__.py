"""Servers that tests start beside a worker: databases, queues, package indexes, and servers that go away."""
