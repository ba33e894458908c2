"""Functions: what code, which version, how many at once.

A deployed archive comes in through `archive` (what may be in it), becomes an immutable tree in `code_store`, is
described by `function_config` and `entrypoint`, and is remembered by `registry`. At run time `admission` says who may
enter and `logs` keeps what was printed. Nothing here makes a sandbox: `function` hands requests to the room below.
"""
