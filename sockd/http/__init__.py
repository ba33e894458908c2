"""The HTTP servers.

`front` serves the public port: `/run/<name>`, function URLs (`urls`), `/healthz`, `/status`, `/metrics`, the HTML page (`page`),
and AWS's Lambda API for signed requests (`aws`). `management` serves a Unix socket that only root can open: deploys run code, and
functions on the host's network can reach every public port of the host. Both use the worker through `worker` and know
nothing of sandboxes.
"""
