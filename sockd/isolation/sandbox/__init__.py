"""Sandboxes: their parts, and the owners of these parts.

The farm contains every sandboxed process. A `Sandbox` is a memory reservation, a cgroup, a detached root, a uid, a process
forked by a Zygote, and the channel to it; `Sandbox.destroy` releases all of them. This package knows nothing of functions, HTTP
or the selection of Zygotes.
"""
