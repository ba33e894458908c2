"""The keys of a chunk store's users: one secret in a file, from which the keys of tenants and the salts of chunks derive.

    tenant key = HMAC-SHA256(secret, "manifest", tenant)
    salt       = HMAC-SHA256(secret, "salt", root id, zone, epoch, tenant)
    proof      = HMAC-SHA256(secret, "store", root id)
    blob key   = HMAC-SHA256(secret, "blob")
    peer key   = HMAC-SHA256(secret, "peer")
    node token = HMAC-SHA256(secret, "cache nodes")

The salt depends on the secret, so that a reader of the store alone cannot test whether it holds a known file. All workers that
share a store have the same file, which the proof in the store's table of roots is for. Without the file the images in the store
are lost: another key needs another store, and functions need to be deployed anew.
"""

from __future__ import annotations

import hmac
import logging
from pathlib import Path

from sockd.base.errors import BadConfig, SecretsLocked
from sockd.base.key_file import make_key, read_key

_log = logging.getLogger(__name__)


class ImageKeys:
    """What derives from one secret."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    @classmethod
    def at(cls, path: Path, *, make: bool = False) -> ImageKeys:
        """Derive the keys from the secret in this file.

        Args: make: create the file when it is not there.

        Raises: SecretsLocked when there is no file, or no usable one; the log names it, which callers do not see."""
        try:
            secret = read_key(path)
            if secret is None and make:
                secret = make_key(path)
        except BadConfig as error:
            _log.error("images have no key: %s", error.message)
            raise SecretsLocked(
                "the key of the worker's images (images.key_file) cannot be used; the worker's log says why: mend its file, "
                "then try again"
            ) from error
        if secret is None:
            raise SecretsLocked(
                "the key of the worker's images (images.key_file) is missing: put its file back and start sockd again"
            )
        return cls(secret)

    def tenant_key(self, tenant: str = "") -> bytes:
        """What seals this tenant's manifests."""
        return self._derived("manifest", tenant)

    def blob_key(self) -> bytes:
        """What seals the files of functions that workers share."""
        return self._derived("blob")

    def peer_key(self) -> bytes:
        """The key by which workers of a group know each other."""
        return self._derived("peer")

    def node_token(self) -> str:
        """The token of the cache nodes that workers of a group run."""
        return self._derived("cache nodes").hex()

    def salt(self, root: str, *, zone: str = "", epoch: int = 0, tenant: str = "") -> bytes:
        """What the chunks of an upload are salted with. Chunks under different salts are never shared.

        Args:
            root: the origin of the store's active root.
            zone: the availability zone: what one damaged chunk may affect.
            epoch: raised by the operator for a new salt.
            tenant: empty: tenants share chunks."""
        return self._derived("salt", root, zone, str(epoch), tenant)

    def proof(self, root: str) -> str:
        """Tells a worker with another secret that it cannot use the store. Args: root: as `salt`."""
        return self._derived("store", root).hex()

    def _derived(self, *fields: str) -> bytes:
        # Each field with its length, so that no two lists of fields are the same text.
        encoded = [field.encode() for field in fields]
        text = b"".join([len(field).to_bytes(4, "big") + field for field in encoded])
        return hmac.digest(self._secret, b"sockd images\0" + text, "sha256")
