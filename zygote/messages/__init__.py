"""What a sandbox reads and writes: events, answers, errors, and lines of its log."""
