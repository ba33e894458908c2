"""A debugger for the function of this sandbox: debugpy, which connects to the worker and waits for who will debug.

Only in a sandbox that was made for it (`sockd invoke --debug`). debugpy's own adapter would be a process, and a port that
every function with network could connect to; its debug server speaks the same protocol itself, over a connection that it
makes, and the worker has the port.
"""

from __future__ import annotations

import os


def attach(port: int) -> None:
    """Return when a debugger has said that it is ready: before anything of the function has been imported. The function's
    code is the current directory.

    Args: port: the worker's, on loopback. Raises: whatever debugpy raises."""
    settings = {
        "IDE_PROJECT_ROOTS": os.getcwd(),  # "just my code" is this
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # or the function's log says that Python's own modules are frozen
    }
    added = {name: value for name, value in settings.items() if name not in os.environ}
    os.environ.update(added)
    import debugpy  # type: ignore[import-not-found]  # noqa: T100

    debugpy.configure(subProcess=False)  # to debug them, too, takes the adapter
    debugpy.connect(("127.0.0.1", port))
    debugpy.wait_for_client()  # noqa: T100
    for name in added:
        del os.environ[name]
