"""A distribution: one wheel, identified by its digest, or the wheel built from a source that a digest or a commit identifies;
a closure: all distributions of a function.

Owns the name of a distribution's directory in the store, which is also its name in every sandbox. Knows nothing of
where wheels come from or how they are unpacked.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

import msgspec

SANDBOX_STORE = "/packages"
"""Where sandboxes see the store, read-only."""

DIGEST_PREFIX = 12
"""Hex digits of the digest in the key of an index's wheel: 48 bits, enough among the wheels of one name and version."""
BUILT_PREFIX = 32
"""The same of a built distribution: 128 bits, because a deployer chooses its source, and could search for another one's key."""

# An index answers with these and they become a path: anything that is not a normalised name (PEP 503) or a version
# (PEP 440, with the epoch's "!" and the local version's "+") ends here.
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_VERSION = re.compile(r"[a-z0-9]+([.!+_-][a-z0-9]+)*")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_PYTHON = re.compile(r"(3\.[0-9]{1,2})?")


_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_URL = re.compile(r"https?://[!-~]{1,2000}")
_SUBDIRECTORY = re.compile(r"([A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*)?")


class Source(msgspec.Struct, frozen=True, order=True, kw_only=True, omit_defaults=True):
    """What a distribution without a wheel is built from: an archive, pinned by its digest, or a commit of a git repository.

    Raises ValueError when made with a field that a build must not be given."""

    url: str
    """Without credentials."""
    digest: str = ""
    """sha256 of the archive, hex."""
    commit: str = ""
    subdirectory: str = ""
    """Where the project is in it; empty: at its top."""

    def __post_init__(self) -> None:
        pin, pattern = (self.commit, _COMMIT) if self.commit else (self.digest, _DIGEST)
        for value, expected in ((self.url, _URL), (pin, pattern), (self.subdirectory, _SUBDIRECTORY)):
            if not expected.fullmatch(value):
                raise ValueError(f"not a source: {value[:80]!r}")

    def digest_with(self, environment: str) -> str:
        """Return the digest of the wheel that is built from this source. Args: environment: what else decides the result
        (`wheel_tags.build_environment`)."""
        parts = (self.digest or self.url, self.commit, self.subdirectory, environment)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class Distribution(msgspec.Struct, frozen=True, order=True, kw_only=True, omit_defaults=True):
    """One wheel of one version of one package.

    Raises ValueError when made with a field that could not be part of a directory name."""

    name: str
    """Normalised as PEP 503 says."""
    version: str
    digest: str
    """sha256 of the wheel, hex; if it is built, of its source and the build's environment."""
    url: str
    """The URL of the wheel, or of the source."""
    source: Source | None = None
    """What it is built from; None: it is a wheel."""
    python: str = ""
    """For which interpreter it is installed (`Interpreter.tag`)."""

    def __post_init__(self) -> None:
        fields = (self.name, _NAME), (self.version, _VERSION), (self.digest, _DIGEST), (self.python, _PYTHON)
        for value, pattern in fields:
            if not pattern.fullmatch(value):
                raise ValueError(f"not a distribution: {value[:80]!r}")

    @property
    def key(self) -> str:
        """The directory: two wheels of one version differ here, and one that is compiled by two interpreters, so it is never
        written to twice."""
        digest = self.digest[: BUILT_PREFIX if self.source else DIGEST_PREFIX]
        return f"{self.name}-{self.version}-{digest}{'.' if self.python else ''}{self.python}"


class Closure(msgspec.Struct, frozen=True):
    """Every distribution that a function's requirements lead to, each pinned; sorted, no two of one name.

    Raises ValueError when two distributions share a name: one interpreter can import only one of them."""

    distributions: tuple[Distribution, ...] = ()

    def __post_init__(self) -> None:
        names = [distribution.name for distribution in self.distributions]
        if names != sorted(set(names)):
            raise ValueError("a closure is sorted by name and names each package once")

    @classmethod
    def of(cls, distributions: Iterable[Distribution]) -> Closure:
        """The closure of these distributions, in any order."""
        return cls(tuple(sorted(distributions)))

    @property
    def keys(self) -> frozenset[str]:
        """What Zygotes are compared by: equal keys, equal files."""
        return frozenset(distribution.key for distribution in self.distributions)

    def to_json(self) -> bytes:
        """For the registry; `from_json` gives an equal closure."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, data: bytes | str) -> Closure:
        """The closure that `to_json` wrote.

        Raises: msgspec.ValidationError or msgspec.DecodeError when it is anything else."""
        return msgspec.json.decode(data, type=cls)


def name_of(key: str) -> str:
    """The package's name in a key."""
    return key.rsplit("-", 2)[0]


def python_of(key: str) -> str:
    """The `python` of the distribution with a key."""
    return key.rpartition("-")[2].partition(".")[2]


def in_order(keys: Iterable[str]) -> list[str]:
    """Keys in the order of a closure, which is that of their names: the order on sys.path."""
    return sorted(keys, key=lambda key: (name_of(key), key))
