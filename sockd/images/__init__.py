"""Container images, from a registry to a mounted file system whose data is fetched when it is read.

- `registry`: references, registry client, layouts, archives; layers as one tree of files, which `sockd.linux.erofs` writes
- `chunks`: the image cut into encrypted chunks, in a store that workers share
- `caches`: chunks on the way: L1 of a worker, L2 in the network
- `agent`: the confined process that answers reads over FUSE; `agent_keeper` is its side in the daemon
- `profiles`: which blocks a first start has read, for the next one
- `store`: the worker's images: import, records, mounts, removal
"""
