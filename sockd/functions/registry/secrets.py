"""The vault: what makes the environments of functions unreadable on the disk, and the key that opens them.

    {"handler": …, "env": {"A": "b"}, "secrets": {…}, "sealed": null}      a function's settings in memory
    {"handler": …, "env": {},         "secrets": {},  "sealed": "v1.…"}    in the registry's file

AES-256-GCM with a new nonce for each; the function's name is authenticated with it, so that what was sealed for one function
does not open for another. Owns the key's file: 32 bytes, its owner's alone. Knows of settings no more than these keys.
"""

from __future__ import annotations

import base64
import binascii
import os
from pathlib import Path

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sockd.base.config import SecretsConfig
from sockd.base.errors import SecretsLocked
from sockd.base.key_file import make_key, read_key

NONCE_BYTES = 12
PREFIX = "v1."
CONFIDENTIAL = ("env", "secrets", "deployer")
EMPTY = msgspec.Raw(b"{}")
KEY_FILE_VARIABLE = "SOCKD_SECRET_KEY_FILE"

Settings = dict[str, msgspec.Raw]


class Vault:
    """`seal` before the disk, `open` behind it. Without a key it opens nothing, and seals nothing that is to be sealed."""

    def __init__(self, path: Path, key: bytes | None) -> None:
        """Args: path: of the key's file; key: its content, None when it is not there."""
        self.path = path
        self._cipher = AESGCM(key) if key is not None else None

    @classmethod
    def at(cls, path: Path) -> Vault:
        """The vault whose key is in this file, if it is there.

        Raises: BadConfig when the file is no key, or when others than its owner may read it."""
        return cls(path, read_key(path))

    @property
    def has_key(self) -> bool:
        return self._cipher is not None

    def make_key(self) -> None:
        """Write a new key, which is on the disk when this returns. Raises: BadConfig, also when there is a file."""
        self._cipher = AESGCM(make_key(self.path))

    def seal(self, name: str, config: str) -> str:
        """A function's settings as they may lie on a disk; unchanged when there is nothing to hide.

        Args: config: JSON of an object. Raises: SecretsLocked when there is no key."""
        table = msgspec.json.decode(config, type=Settings)
        hidden = {key: table[key] for key in CONFIDENTIAL if table.get(key, EMPTY) != EMPTY}
        if not hidden:
            return config
        if self._cipher is None:
            raise SecretsLocked(
                "the key of the worker's secrets is missing, so no environment can be kept: put its file back and start "
                "sockd again"
            )
        nonce = os.urandom(NONCE_BYTES)
        data = nonce + self._cipher.encrypt(nonce, msgspec.json.encode(hidden), _bound_to(name))
        table |= dict.fromkeys(hidden, EMPTY)
        table["sealed"] = msgspec.Raw(msgspec.json.encode(PREFIX + base64.b64encode(data).decode()))
        return msgspec.json.encode(table).decode()

    def open(self, name: str, config: str) -> str:
        """What was given to `seal`; unchanged, with its `sealed`, when this key does not open it."""
        if not is_sealed(config):
            return config
        table = msgspec.json.decode(config, type=Settings)
        try:
            text = msgspec.json.decode(table["sealed"], type=str).removeprefix(PREFIX)
            data = base64.b64decode(text, validate=True)
            if self._cipher is None:
                return config
            plain = self._cipher.decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], _bound_to(name))
        except (InvalidTag, binascii.Error, ValueError):
            return config
        table |= msgspec.json.decode(plain, type=Settings)
        table["sealed"] = msgspec.Raw(b"null")
        return msgspec.json.encode(table).decode()


def is_sealed(config: str) -> bool:
    """Whether these settings hold what has to be opened."""
    return f'"sealed":"{PREFIX}' in config


def key_path(config: SecretsConfig, state_dir: Path) -> Path:
    """Where the key is: as configured, in the environment, among systemd's credentials, or next to the data."""
    configured = config.key_file or os.environ.get(KEY_FILE_VARIABLE)
    if configured:
        return Path(configured)
    credential = Path(os.environ.get("CREDENTIALS_DIRECTORY", "/nonexistent"), "sockd.key")
    return credential if credential.exists() else state_dir / "secret.key"


def _bound_to(name: str) -> bytes:
    return b"sockd environment\0" + name.encode()
