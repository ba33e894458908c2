"""Processes: how ours start and end, what they use of the processors, and how many there may be."""
