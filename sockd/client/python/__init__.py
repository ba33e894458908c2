"""The client of people who write Python: a decorated function runs on a worker as if it were called here.

    import sockd

    @sockd.function(packages=["pandas"], memory_mb=256)
    def total(url: str) -> float: ...

    total.remote("https://…")        total.map(urls)        total.spawn(url).result()        total(url)

Needs no daemon to be imported, and imports none of its areas: it packs the code (`source`), deploys it over the management
socket when it has changed (`deploying`), and calls it, bound to that code (`calling`). `stand_in` is what `import sockd` is in
a sandbox.
"""

from __future__ import annotations

from sockd.client.python.errors import DeployFailed, NameTaken, NoWorker, OtherCode, RemoteError, UnverifiedAnswer
from sockd.client.python.remote_function import RemoteFunction, function

__all__ = [
    "DeployFailed",
    "NameTaken",
    "NoWorker",
    "OtherCode",
    "RemoteError",
    "RemoteFunction",
    "UnverifiedAnswer",
    "function",
]
