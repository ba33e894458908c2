"""Where a worker's images are kept: whether its chunk store and the key of its images can be used. Changes nothing.

A worker may use both meanwhile: nothing is written, and of a store in S3 only the table that a worker reads first is read.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from sockd.base.config import ImagesConfig
from sockd.base.errors import BadConfig, ChunkStoreFailed
from sockd.base.key_file import read_key
from sockd.client.cli.doctor.checks import GB, Check
from sockd.images.chunks import root_table
from sockd.images.chunks.store_settings import StoreSettings, open_store
from sockd.worker.builders.image_parts import ca_file, check_parts, docker_config, store_settings

STORE, KEY = "image store", "image key"
CONFIG_FIX = "correct [images] in the worker's configuration file"
ENDPOINT_FIX = "check images.endpoint, images.region and the keys, and that the store runs"


def image_store(state_dir: Path, config: ImagesConfig | None = None) -> Check:
    """Whether chunks can be read, and written as far as this shows without writing."""
    config = config or ImagesConfig()
    try:
        settings = store_settings(config, state_dir.absolute())
        docker_config(config)
        ca_file(config)
        check_parts(config, config.worker or "worker")
        return _directory(Path(settings.url)) if settings.is_directory else _bucket(settings)
    except BadConfig as error:
        return Check(STORE, False, error.message, CONFIG_FIX)


def _directory(path: Path) -> Check:
    if not path.exists():
        return Check(STORE, True, f"none yet: the first image makes {path}")
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        return Check(STORE, None, f"{path} cannot be written", f"mount -o remount,rw {path}")
    free = shutil.disk_usage(path).free
    found = f"{path}, {free / GB:.1f} GB free"
    return Check(STORE, True, found) if free >= GB else Check(STORE, None, found, "sockd images gc")


def _bucket(settings: StoreSettings) -> Check:
    try:
        store = open_store(settings)
        try:
            store.get_object(root_table.KEY)
        finally:
            store.close()
    except ChunkStoreFailed as error:
        return Check(STORE, None, error.message, ENDPOINT_FIX)
    return Check(STORE, True, f"{settings.url} answers")


def image_key(state_dir: Path, config: ImagesConfig | None = None) -> Check:
    """Whether the worker can read the key of its images."""
    named = config.key_file if config is not None else None
    path = Path(named) if named else state_dir.absolute() / "images.key"
    try:
        if read_key(path) is not None:
            return Check(KEY, True, str(path))
    except BadConfig as error:
        return Check(KEY, None, error.message, f"chmod 600 {path}, or put the right file back")
    if named:
        fix = f"put it back; if no worker has one yet: (umask 077; head -c 32 /dev/urandom > {path})"
        return Check(KEY, None, f"{path} (images.key_file) is missing", fix)
    return Check(KEY, True, "none yet: the first image makes it")
