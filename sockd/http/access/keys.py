"""Keys: bearer tokens of remote clients, each with its permissions.

A key's text is shown once, when it is created; its SHA-256 is stored. A slow hash is not needed, because a key has 256 random
bits. It begins with `sockd_`, so that scanners find keys in source code.

Owns keys.json of the state directory, and keys.made, an empty file that shows that there was a keys.json; the workers of a group
keep keys in their database instead (`postgres_keys`). A revoked key is refused from the next request on.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import os
import re
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol, get_args

import msgspec

from sockd.base.errors import BadConfig, BadRequest, KeyNeeded, KeyNotEnough, NoSuchKey

Right = Literal["read", "invoke", "deploy"]
RIGHTS: tuple[Right, ...] = get_args(Right)
MAX_KEYS = 1000
_NAME = re.compile(r"[A-Za-z0-9_.@-]{1,64}")
_FUNCTION = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TEXT = re.compile(rb"sockd_([0-9a-f]{8})_([0-9a-f]{64})")
_BEARER = b"bearer "
_NOBODYS = hashlib.sha256(b"").hexdigest()
_log = logging.getLogger(__name__)


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The stored data of one key."""

    id: str
    """Eight hex digits, with which its text begins."""
    name: str
    digest: str
    """SHA-256 of its secret, in hex."""
    rights: list[Right]
    functions: list[str] = []
    """Its functions; empty: all."""
    made_at: float = 0.0

    def check(self, right: Right, function: str | None) -> None:
        """Check a permission. Args: function: None: several functions. Raises: KeyNotEnough."""
        if right not in self.rights:
            raise KeyNotEnough(f"the key {self.name!r} may {_listed(self.rights)}, and this takes {right!r}")
        self.check_function(function)

    def check_function(self, function: str | None) -> None:
        """Check that it is for a function. Args: function: None: all functions. Raises: KeyNotEnough."""
        if self.functions and function not in self.functions:
            needed = (
                f"for {function!r}"
                if function is not None
                else "for all functions (`sockd keys add` without --function)"
            )
            raise KeyNotEnough(
                f"the key {self.name!r} is for {_listed(self.functions)} only, and this takes one {needed}"
            )

    def shown(self) -> dict[str, object]:
        """All fields except the hash."""
        return {
            "name": self.name,
            "id": self.id,
            "may": self.rights,
            "functions": self.functions,
            "made_at": self.made_at,
        }


class KeyStore(Protocol):
    """What keeps keys over restarts."""

    async def add(self, key: Key, all_keys: Sequence[Key]) -> None:
        """Keep a new key. Args: all_keys: with it. Raises: BadRequest: its name is taken; SockdError, OSError."""

    async def remove(self, key: Key, all_keys: Sequence[Key]) -> None:
        """Keep a key no longer. Args: all_keys: without it. Raises: SockdError, OSError."""


class KeysFile:
    """keys.json, a `KeyStore`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def add(self, key: Key, all_keys: Sequence[Key]) -> None:
        await asyncio.to_thread(_publish, self._path, msgspec.json.encode(all_keys))

    async def remove(self, key: Key, all_keys: Sequence[Key]) -> None:
        await asyncio.to_thread(_publish, self._path, msgspec.json.encode(all_keys))


class Keys:
    """The keys of one worker, or of all workers of its group."""

    def __init__(self, store: KeyStore | None = None, keys: Sequence[Key] = ()) -> None:
        """Args: store: None: no keys, and none can be created."""
        self._store = store
        self._keys = {key.id: key for key in keys}
        self._writing = asyncio.Lock()

    @classmethod
    def open(cls, path: Path) -> Keys:
        """Read keys.json. Raises: BadConfig, for a file that is damaged; OSError."""
        keys = read_keys(path)
        if keys is None:
            if _mark(path).exists():
                _log.warning(
                    "%s was lost: no key is valid; to get those of a backup: stop sockd, sockd restore it with --replace, "
                    "start sockd; or make new keys (sockd keys add)",
                    path.name,
                )
            return cls(KeysFile(path))
        _mark(path).touch(mode=0o600)
        return cls(KeysFile(path), keys)

    def replace(self, keys: Sequence[Key]) -> None:
        """Have these keys, as they are stored now."""
        self._keys = {key.id: key for key in keys}

    def list(self) -> Sequence[Key]:
        """All, by name."""
        return sorted(self._keys.values(), key=lambda key: key.name)

    def bearer(self, authorization: bytes | None) -> Key:
        """The key that an Authorization header shows. Raises: KeyNeeded."""
        if authorization is None:
            raise KeyNeeded(
                "a key is required: send `Authorization: Bearer KEY`; `sockd keys add` on the worker's host creates one"
            )
        scheme, text = authorization[: len(_BEARER)], authorization[len(_BEARER) :].strip()
        key = self.find(text) if scheme.lower() == _BEARER else None
        if key is None:
            raise KeyNeeded("this key is unknown to the worker, or revoked", is_wrong=True)
        return key

    def find(self, text: bytes) -> Key | None:
        """Return the key with this text, if there is one."""
        found = _TEXT.fullmatch(text)
        if found is None:
            return None
        key = self._keys.get(found[1].decode())
        given = hashlib.sha256(found[2]).hexdigest()
        # The id is no secret. Without a key of this id there is a comparison all the same.
        is_same = hmac.compare_digest(given, key.digest if key is not None else _NOBODYS)
        return key if is_same else None

    async def add(self, name: str, rights: Sequence[Right], functions: Sequence[str] = ()) -> str:
        """Create a key; returns its text, which is not stored. Raises: BadRequest, StorageFull; OSError."""
        if not _NAME.fullmatch(name):
            raise BadRequest(f"{name[:80]!r} cannot be a key's name: use 1 to 64 of A-Z a-z 0-9 _ . @ -")
        if not rights:
            raise BadRequest(f"a key must be allowed something: {_listed(RIGHTS)}")
        for function in functions:
            if not _FUNCTION.fullmatch(function):
                raise BadRequest(f"{function[:80]!r} cannot be a function's name")
        async with self._writing:
            if any(key.name == name for key in self._keys.values()):
                raise BadRequest(f"there is a key {name!r} already: sockd keys rm {name}")
            if len(self._keys) >= MAX_KEYS:
                raise BadRequest(f"there are {MAX_KEYS} keys already: remove some first")
            secret = secrets.token_hex(32)
            digest = hashlib.sha256(secret.encode()).hexdigest()
            id = secrets.token_hex(4)
            while id in self._keys:
                id = secrets.token_hex(4)
            key = Key(id, name, digest, [right for right in RIGHTS if right in rights], list(functions), time.time())
            if self._store is None:
                raise BadRequest("this worker keeps no keys")
            await self._store.add(key, [*self._keys.values(), key])
            self._keys[id] = key
            return f"sockd_{id}_{secret}"

    async def remove(self, name: str) -> None:
        """Revoke a key at once.

        Raises: NoSuchKey; StorageFull, DatabaseUnavailable, OSError: it is revoked here alone, until the keys are read again."""
        async with self._writing:
            found = next((key for key in self._keys.values() if key.name == name), None)
            if found is None or self._store is None:
                raise NoSuchKey(name)
            del self._keys[found.id]
            await self._store.remove(found, list(self._keys.values()))


def read_keys(path: Path) -> list[Key] | None:
    """Return the keys in a keys.json; None: there is none. Raises: BadConfig, for a file that is damaged; OSError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Key])
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise BadConfig(
            f"{path.name} in the state directory is damaged ({error}): put a backup back, or remove it and make new keys"
        ) from None


def put_aside(path: Path, name: str) -> None:
    """Rename a keys.json that is used no longer, so that it is not missed."""
    path.rename(path.with_name(name))
    _mark(path).unlink(missing_ok=True)


def _mark(path: Path) -> Path:
    """Return the file that shows that keys were stored."""
    return path.with_suffix(".made")


def _publish(path: Path, content: bytes) -> None:
    _mark(path).touch(mode=0o600)
    temporary = path.with_name(f".{path.name}.tmp")
    file_fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(file_fd, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words)
