"""The request that this sandbox answers, or the last one that it has answered: for the lines of its log."""

number = bytes(16)
"""Its id."""
