"""What the tests stand on: the ledger, the n-th-call sweep, a BPF interpreter. Nothing in here is a test."""
