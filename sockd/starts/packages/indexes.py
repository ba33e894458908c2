"""The package indexes of a worker, and the selection of a function.

A function names an index of `packages.indexes`, or the URL of one that the worker has, but no other: uv runs with the daemon's
network and the operator's netrc, which a deployer's URL could misuse. Credentials belong to the worker (in its URLs, or netrc),
and never appear in closures, errors or logs.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from sockd.base.config import PackageConfig
from sockd.base.errors import BadFunctionConfig

PYPI = "https://pypi.org/simple"


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a function's settings say, by name or URL."""

    index: str | None = None
    """In the place of the worker's own; None: that one."""
    extra: tuple[str, ...] = ()
    """Searched before it: the first index that has a package is the only one that it is taken from."""


WORKERS = Chosen()


class Indexes:
    """The package indexes of one worker."""

    def __init__(self, config: PackageConfig) -> None:
        self._index_url = config.index_url
        self._extra = config.extra_index_urls
        self._named = config.indexes
        known = [*([config.index_url] if config.index_url else []), *self._extra, *self._named.values()]
        self._by_url = {_bare(url): url for url in (PYPI, *known)}
        self.secrets = frozenset(secret for url in known for secret in secrets_of(url))
        """What of the URLs must not be shown."""

    def variables(self, chosen: Chosen = WORKERS) -> dict[str, str]:
        """uv's variables for resolving. Raises: BadFunctionConfig for an index that the worker does not have."""
        index = self._url("packages.index", chosen.index) if chosen.index else self._index_url
        extra = [self._url("packages.extra_index", each) for each in chosen.extra]
        return _variables(index, [*extra, *self._extra])

    def all_variables(self) -> dict[str, str]:
        """uv's variables for fetching a wheel by its URL: uv takes the credentials from the index of the same origin."""
        return _variables(self._index_url, [*self._extra, *self._named.values()])

    def _url(self, key: str, name: str) -> str:
        url = self._named.get(name) or self._by_url.get(_bare(name))
        if url is None:
            names = ", ".join(sorted(self._named)) or "none"
            raise BadFunctionConfig(
                f"{key} = {without_credentials(name)[:200]!r}: no index of this worker; those with a name are: {names}. "
                "Its operator adds one to [packages.indexes] of the worker's configuration"
            )
        return url


def without_credentials(url: str) -> str:
    """A URL as it may be kept and shown."""
    head, slashes, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    return f"{head}{slashes}{authority.rpartition('@')[2]}{slash}{path}" if slashes else url


def _bare(url: str) -> str:
    return without_credentials(url).rstrip("/")


def secrets_of(url: str) -> Iterable[str]:
    """User information, and the password alone, as written and decoded."""
    user_info = urlsplit(url).netloc.rpartition("@")[0]
    password = user_info.partition(":")[2] or user_info
    return {each for each in (user_info, password, unquote(password)) if each}


def _variables(index: str | None, extra: list[str]) -> dict[str, str]:
    # In the environment, not among the arguments: /proc shows those to all.
    chosen = {"UV_DEFAULT_INDEX": index} if index else {}
    if extra:
        # Each has a name: of a URL without one uv would take what is before a "=" for it.
        chosen["UV_INDEX"] = " ".join(f"sockd-{number}={url}" for number, url in enumerate(dict.fromkeys(extra)))
    return chosen
