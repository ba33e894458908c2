"""The TLS context of all connections that the engine makes.

Owns nothing. It is made with every certificate in memory: later there may be no file system to look for one.
"""

from __future__ import annotations

import ssl

import certifi


def client_context() -> ssl.SSLContext:
    """Trusts what the system trusts, or Mozilla's list as certifi carries it where the system has none."""
    context = ssl.create_default_context()
    paths = ssl.get_default_verify_paths()
    if paths.cafile:
        context.load_verify_locations(paths.cafile)  # a directory of them would be read at each handshake
    if not context.cert_store_stats()["x509_ca"]:
        context.load_verify_locations(certifi.where())
    return context
