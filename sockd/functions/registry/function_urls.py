"""Function URLs: which there are, and how they are created, changed and deleted.

Owns nothing: each URL is part of its function's aggregate in the registry, and goes with its function or alias.
"""

from __future__ import annotations

import base64
import os
import time

import msgspec

from sockd.functions.registry.aggregate import FunctionAggregate
from sockd.functions.registry.function_policies import FunctionPolicies
from sockd.functions.registry.function_url import Auth, Cors, FunctionUrl, Mode, NoSuchUrl, UrlExists
from sockd.functions.registry.registry import Registry

ID_BYTES = 20
"""Bytes of randomness in an id; 32 letters and digits, as AWS's."""


class FunctionUrls:
    """The URLs of all functions."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.policies = FunctionPolicies(registry)
        """Which of the URLs without authorization everybody may call."""

    async def create(
        self, name: str, qualifier: str = "", *, auth: Auth = "NONE", mode: Mode = "BUFFERED", cors: Cors | None = None
    ) -> FunctionUrl:
        """Give a function, or one of its aliases, a URL. Raises: UrlExists, NoSuchFunction, BadRequest, StorageFull."""
        now = time.time()
        id_ = base64.b32encode(os.urandom(ID_BYTES)).decode().lower()
        url = FunctionUrl(id_, name, qualifier, auth, mode, cors, now, now)
        url.check()

        def create(function: FunctionAggregate) -> FunctionAggregate:
            if qualifier in function.urls:
                what = f"function {name!r}" + (f" with the qualifier {qualifier!r}" if qualifier else "")
                raise UrlExists(f"{what} has a URL already")
            return function.with_url(url)

        await self._registry.change(name, create)
        return url

    async def update(self, old: FunctionUrl, *, auth: Auth, mode: Mode, cors: Cors | None) -> FunctionUrl:
        """Change how a URL is served; its id stays. Raises: BadRequest, StorageFull."""
        url = msgspec.structs.replace(old, auth=auth, mode=mode, cors=cors, updated_at=time.time())
        url.check()
        await self._registry.change(url.name, lambda function: function.with_url(url))
        return url

    async def delete(self, name: str, qualifier: str = "") -> None:
        """Raises: NoSuchUrl, StorageFull."""
        self.of(name, qualifier)
        await self._registry.change(name, lambda function: function.without_url(qualifier))

    def find(self, id_: str) -> FunctionUrl:
        """The URL with this id. Raises: NoSuchUrl."""
        return self._registry.url(id_)

    def of(self, name: str, qualifier: str = "") -> FunctionUrl:
        """The URL of a function, or of one of its aliases. Raises: NoSuchUrl."""
        url = self._registry.of(name).urls.get(qualifier)
        if url is None:
            what = f" for the qualifier {qualifier!r}" if qualifier else ""
            raise NoSuchUrl(f"function {name!r} has no URL{what}")
        return url

    def all_of(self, name: str) -> list[FunctionUrl]:
        """All URLs of a function, by qualifier."""
        return list(self._registry.of(name).urls.values())
