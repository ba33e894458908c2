"""The chunk store of container images: encryption, manifests, stores, roots and garbage collection.

    image (one EROFS file) ── cut ── encrypt ── chunks     named by the digest of their ciphertext, shared between images
                                             └─ manifest   names and keys of one image's chunks, sealed for one tenant
    store   chunks and objects (manifests, startup profiles, roots), below a root each: a directory, or a bucket of S3

All calls block; threads of the daemon and confined processes use them.
"""
