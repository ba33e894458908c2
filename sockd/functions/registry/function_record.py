"""One deploy of a function, as the registry remembers it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from sockd.functions.code.function_config import FunctionConfig


@dataclass(frozen=True)
class FunctionRecord:
    """One deploy of one function."""

    name: str
    version: int
    """1 for the first deploy of a name; a changed deploy counts one up. (What is published is numbered besides.)"""
    digest: str
    code_bytes: int
    handler: str
    """"module:attr"."""
    config: str
    """JSON of a FunctionConfig, opened if the vault has the key."""
    closure: str
    """JSON of a Closure."""
    initscript: str
    """Digest of its WebAssembly module; empty: it has none."""
    published_at: float
    """Unix time of this deploy."""
    created_at: float
    """Unix time of the function's first deploy."""
    image: str = ""
    """Digest of the container image that it runs in, "sha256:..."; empty: it has none. Its tag may mean another one later."""

    @cached_property
    def readable(self) -> FunctionConfig:
        """Its settings for views, parsed once: an environment that cannot be opened is empty."""
        return FunctionConfig.from_json(self.config)

    @property
    def settings(self) -> FunctionConfig:
        """Its settings. Raises: SecretsLocked: no key here opens their environment."""
        return self.readable.opened()
