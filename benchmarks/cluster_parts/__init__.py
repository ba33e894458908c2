"""The parts of the benchmark `cluster`."""
