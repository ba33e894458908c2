"""Attacks on a worker: groups A (file system), B (processes, IPC, network), C (kernel surface) of the suite."""
