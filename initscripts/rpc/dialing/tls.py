"""Trust: by whose authorities the engine checks the peers of its TLS connections, and the contexts that do so.

Owns the contexts. They are made of certificates in memory: later there may be no file system to look for one.
"""

from __future__ import annotations

import hashlib
import ssl

import certifi


class Trust:
    """The authorities of a function, or the system's."""

    def __init__(self, authorities: bytes | None = None, *, context: ssl.SSLContext | None = None) -> None:
        """Args: authorities: their certificates (PEM), the only ones that are trusted; None: the system's. context: made of them
        before."""
        self.name = "" if authorities is None else hashlib.sha256(authorities).hexdigest()
        """Differs from that of any other trust: connections are kept by it. Empty for the system's."""
        self._authorities = authorities
        self._context = context

    @property
    def context(self) -> ssl.SSLContext:
        """Made at the first use: reading all certificates of a system takes 60 ms."""
        if self._context is None:
            self._context = client_context() if self._authorities is None else _context_of(self._authorities)
        return self._context


def client_context() -> ssl.SSLContext:
    """Trusts what the system trusts, or Mozilla's list as certifi carries it where the system has none."""
    context = ssl.create_default_context()
    paths = ssl.get_default_verify_paths()
    if paths.cafile:
        context.load_verify_locations(paths.cafile)  # a directory of them would be read at each handshake
    if not context.cert_store_stats()["x509_ca"]:
        context.load_verify_locations(certifi.where())
    return context


def _context_of(authorities: bytes) -> ssl.SSLContext:
    """A context that trusts these alone, and none if there are no certificates in it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        # Bundles have comments in all languages, and ssl takes text only in ASCII.
        context.load_verify_locations(cadata=authorities.decode("ascii", "ignore"))
    except (ssl.SSLError, ValueError):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return context
