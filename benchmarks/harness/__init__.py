"""What all benchmarks share: a private worker, requests and their load, results and how they are shown."""
