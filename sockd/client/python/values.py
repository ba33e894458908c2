"""Arguments and results on their way: JSON where that loses nothing, else a pickle.

A worker's port is open to other functions and to web pages, so a function takes pickles from its deployer alone: the worker
verifies the signature of the call (`sockd.base.call_signature`) with a key of this user's, which no sandbox has. Results are
unpickled here, after the worker has proved that they are its answer; so a client trusts the functions that it calls, with
all that they import, as its own code; `pickle=False` does without pickles.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import io
import os
import pickle
from pathlib import Path
from typing import Any

from sockd.client.python.errors import RemoteError

KEY_BYTES = 32


def pickled(value: object) -> str:
    """A pickle, as text."""
    return base64.b64encode(pickle.dumps(value, protocol=5)).decode()


def unpickled(text: str, renamed: dict[str, str]) -> Any:
    """What a function's answer holds. Args: renamed: modules there and here, for what was pickled by its name there.

    Raises: RemoteError when what it names is not here."""
    try:
        return _Unpickler(base64.b64decode(text), renamed).load()
    except (ImportError, AttributeError) as error:
        raise RemoteError(
            type(error).__name__, f"the result cannot be read here, where something it needs is missing: {error}"
        ) from error


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, renamed: dict[str, str]) -> None:
        super().__init__(io.BytesIO(data))
        self._renamed = renamed

    def find_class(self, module: str, name: str) -> Any:
        return super().find_class(self._renamed.get(module, module), name)


def key_of(name: str) -> bytes:
    """This user's key for calls of a function; the first call makes the file that all of them are derived from.

    Raises: OSError."""
    directory = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config", "sockd")
    path = directory / "remote.key"
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not path.exists():
        made = directory / f"remote.key.{os.getpid()}"
        made.touch(0o600)
        made.write_bytes(os.urandom(KEY_BYTES))
        try:
            os.link(made, path)
        except FileExistsError:
            pass  # another process was faster
        finally:
            made.unlink()
    return hmac.digest(path.read_bytes(), name.encode(), hashlib.sha256)
