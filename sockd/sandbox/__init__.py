"""One sandbox, what it is made of, and who hands the parts out.

The farm holds every sandboxed process. A `Sandbox` is a memory reservation, a cgroup, a detached root, a uid, a process
forked by a Zygote, and the channel to it; `Sandbox.destroy` gives all of them back. Nothing here knows functions, HTTP
or which Zygote is best: those are above.
"""
