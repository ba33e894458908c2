"""The environment that every function's begins with, before its own variables: of a root Zygote's exec, and set by the Zygote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sockd.isolation.roots import base as bases
from sockd_zygote import protocol

PATH = "/usr/local/bin:/usr/bin:/bin"
SINGLE_THREADED = {
    # One thread a library: a BLAS pool that is alive at a fork is a hang in the child (ADR 0001).
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",
}
OF_EXEC = {"PATH": PATH, "LANG": "C.UTF-8", "HOME": "/tmp", **SINGLE_THREADED}
OF_LOADING = {
    # Bind symbols once here, not lazily in every child: each would copy the pages of the tables (ld.so(8)).
    "LD_BIND_NOW": "1",
    # For its getenv(3), which is observed while packages are imported (zygote/native/observe.c).
    "LD_PRELOAD": f"/{bases.ZYGOTE}/{bases.NATIVE}",
}
"""For the root Zygote's loader, besides: gone before anything is forked."""
BASE = OF_EXEC | protocol.ENVIRONMENT


def path_variable(bin_paths: Sequence[str]) -> dict[str, str]:
    """PATH, if packages have scripts."""
    return {"PATH": ":".join([*bin_paths, PATH])} if bin_paths else {}


def python_path(own: str, code: str, paths: Sequence[str]) -> dict[str, str]:
    """PYTHONPATH, if there are packages: for the interpreters that a function starts, which look where the function looks.

    Args: own: the function's own value, which comes first."""
    return {"PYTHONPATH": ":".join([*filter(None, [own]), code, *paths])} if paths else {}


def region_variables(own: Mapping[str, str]) -> dict[str, str]:
    """The region of a function that sets one of its two names: SDKs differ in which they read."""
    region = own.get("AWS_REGION") or own.get("AWS_DEFAULT_REGION")
    return {"AWS_REGION": region, "AWS_DEFAULT_REGION": region} if region else {}
