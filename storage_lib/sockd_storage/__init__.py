"""What `storage` and `nosql` have in common: the count of reads, and the ways to the network."""
