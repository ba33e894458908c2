"""What makes one confined process: the farm that forks it, its root, its networks, and the sandbox itself."""
