"""A Zygote's import request and report, in a memory file that the daemon creates and both ends read.

A control message is too short for a thousand modules. The file's size is sealed, so neither end can make the other wait or
fault. A Zygote that has run packages may write anything there. Shapes and sizes are checked. A false report can only cause that
its packages serve one of their own functions wrongly."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping, Sequence

import msgspec

from sockd.base.untrusted import read_seconds
from sockd.isolation.farm.control import ZygoteGone, ZygoteRefused
from sockd_zygote import protocol

Names = frozenset[str]


class Observed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What imports saw (`sockd_zygote.forks.observer`)."""

    missed: Names = frozenset()
    """Names that nothing provided: of top-level modules, and dotted ones below namespace packages."""
    found: Names = frozenset()
    """Names that a module or a regular package had, the standard library's too."""
    namespaces: Names = frozenset()
    """Names that a namespace package had."""
    listed: Names = frozenset()
    """Directories that were listed, by the dotted name that they have below a distribution; "" is its top."""
    files: Names = frozenset()
    """Names at the top of the function's directory that were looked for; "." is the directory, which was listed."""
    metadata: Names = frozenset()
    """Distributions, by normalised name, whose metadata was asked for."""
    groups: Names = frozenset()
    """Groups of entry points that were asked for."""
    every_distribution: bool = False
    """All distributions were asked for."""
    variables: Names = frozenset()
    """Environment variables that were read or set."""
    prefixes: Names = frozenset()
    """What the names of variables begin with that a listing of all was searched for."""
    every_variable: bool = False
    """All variables were listed, and it is not known for which."""

    def followed_by(self, later: Observed) -> Observed:
        """Return the observations of a Zygote that was forked from one that saw these, and saw `later`: the union."""
        ours, theirs = msgspec.structs.asdict(self), msgspec.structs.asdict(later)
        return Observed(**{name: ours[name] | theirs[name] for name in ours})


NOTHING_SEEN = Observed()


class Imported(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an import did."""

    seconds: float
    threads: int
    """That run Python after it."""
    failed: dict[str, str]
    """Module -> error, of those that failed."""
    left: tuple[str, ...] = ()
    """What was left behind that no fork can have of its own, in words (`sockd_zygote.forks.kept`)."""
    seen: Observed = NOTHING_SEEN
    threaded: str = ""
    """The first module after whose import there was more than one thread."""
    loaded: tuple[tuple[str, Names], ...] = ()
    """The modules that each import has loaded, by the name that it was asked for, in order."""


class ImportRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to import."""

    paths: Sequence[str]
    """Directories for sys.path."""
    modules: Sequence[str]
    pth: Sequence[str] = ()
    """The directories of `paths` that have .pth files."""
    env: Mapping[str, str] = {}
    """Variables that its functions have otherwise than all."""
    open_files: int = 1024
    """The limit that its functions have."""
    sys_path: Sequence[str] = ()
    """All of sys.path, of an image; `directory`: where its functions run; `sitecustomize`: as `ImageImports` has it."""
    directory: str = ""
    sitecustomize: str = ""
    ours: bool = False
    """The modules are sockd's own; else what neither `paths` nor the standard library has is not imported."""


class ImportFile:
    """The memory file of one `import`. Owns its descriptor; `close` it."""

    def __init__(self, request: ImportRequest) -> None:
        """Raises: ZygoteRefused, when the request is too long; OSError."""
        data = msgspec.json.encode(request)
        if len(data) > protocol.IMPORT_MAX_BYTES:
            raise ZygoteRefused(
                f"the list of modules to import has {len(data)} bytes, limit {protocol.IMPORT_MAX_BYTES}"
            )
        self.request_bytes = len(data)
        self._modules = request.modules
        self.fd = os.memfd_create("import", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.truncate(self.fd, protocol.IMPORT_FILE_BYTES)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
            os.pwrite(self.fd, data, 0)
        except BaseException:
            os.close(self.fd)
            raise

    def report(self, count: object) -> Imported:
        """What the Zygote wrote, as long as it says. Raises: ZygoteGone when that does not add up: it lies."""
        if type(count) is not int or not 0 < count <= protocol.IMPORT_REPORT_MAX_BYTES:
            raise ZygoteGone("the Zygote's answer to `import` has no length")
        return read_report(os.pread(self.fd, count, 0))

    def last_begun(self) -> str:
        """The module that the Zygote says to have begun last; empty: none."""
        data = os.pread(self.fd, protocol.IMPORT_PROGRESS.size, protocol.IMPORT_MAX_BYTES)
        begun = int(protocol.IMPORT_PROGRESS.unpack(data)[0])
        return self._modules[begun - 1] if 0 < begun <= len(self._modules) else ""

    def close(self) -> None:
        os.close(self.fd)


def read_report(data: bytes) -> Imported:
    """Raises: ZygoteGone."""
    try:
        imported = msgspec.json.decode(data, type=Imported)
        return msgspec.structs.replace(imported, seconds=read_seconds(imported.seconds))
    except (ValueError, RecursionError, OverflowError):  # msgspec's errors are ValueErrors
        raise ZygoteGone("the Zygote's answer is not one to `import`") from None
