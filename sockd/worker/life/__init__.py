"""The life of a worker with its ports open: start, handover between two workers, drain and end."""
