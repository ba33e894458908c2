"""Commands that run what is carried from the source tree: benchmarks, fault injection, SeBS."""
