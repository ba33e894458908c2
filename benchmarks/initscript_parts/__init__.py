"""What the benchmarks of initscripts share: a worker whose functions find S3 and a script, and the comparison with the paper."""
