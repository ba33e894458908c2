"""Caches of chunks between a worker and the origin (a chunk store), and the fetcher that asks them in order.

    Fetcher ── L1  Slab        one file of this worker, 512 KiB slots
            ├─ L2  L2Client    cache nodes in the network: four of five stripes make a chunk
            └─ origin          a chunk store, asked once per chunk

All caches hold ciphertext under the chunk's name, the digest of the ciphertext. No byte leaves these caches unverified, so a
cache can lose or corrupt data without consequences except time.
"""
