"""The worker's container images: importing them, records of them, their mounts, and which of them may go."""
