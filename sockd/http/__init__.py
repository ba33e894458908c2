"""The HTTP front: bytes to invocations and back.

Two doors. `front` answers the public port: `/run/<name>`, function URLs (`urls`), three read-only pages for programs and one
for people (`page`), and for signed requests AWS's Lambda API (`aws`). `management` answers a Unix socket that only root can
open: whoever can deploy a function runs code here, and a function whose network is the host's can reach every public port
of the host. Both speak to the worker through `worker_api` and know nothing of sandboxes.
"""
