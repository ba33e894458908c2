"""SeBS's storage API: an object is here already if the function's initscript fetched it, and else S3 is asked.

    client = storage.storage.get_instance()            # as SeBS's benchmarks use their own wrapper of it
    client.download(bucket, key, "/tmp/file")

    import storage as s                                # the same without a class
    model = s.download(bucket, key)

Without sockd, or without an initscript, it is a wrapper of boto3 like SeBS's, and configured the same way. boto3 is
imported when something must go over the network, no earlier.
"""

from __future__ import annotations

import _thread
import io
import os

from sockd_storage.reads import Read

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, BinaryIO

_lock = _thread.allocate_lock()


class storage:
    """One instance a process; it holds nothing, and all threads may use it. Errors of the network are boto3's own."""

    instance: storage | None = None

    @staticmethod
    def get_instance(connection_string: str | None = None) -> storage:
        """The process's instance. Makes no connection."""
        with _lock:
            if storage.instance is None:
                storage.instance = storage()
            return storage.instance

    @property
    def client(self) -> Any:
        """The boto3 client, for what this API does not have."""
        from sockd_storage import network

        return network.client("s3")

    @staticmethod
    def unique_name(name: str) -> str:
        """`name` with eight random hex digits before its extension."""
        stem, extension = os.path.splitext(name)
        return f"{stem}.{os.urandom(4).hex()}{extension}"

    def upload(self, bucket: str, file: str, filepath: str) -> str:
        """Upload the file at `filepath` under a unique name made of `file`, which is returned."""
        key = self.unique_name(file)
        self.client.upload_file(filepath, bucket, key)
        return key

    def upload_stream(self, bucket: str, file: str, data: BinaryIO | bytes | memoryview) -> str:
        """Upload what a file object has to read, or bytes, under a unique name made of `file`, which is returned."""
        key = self.unique_name(file)
        self.client.upload_fileobj(data if hasattr(data, "read") else io.BytesIO(data), bucket, key)
        return key

    def download(self, bucket: str, file: str, filepath: str) -> None:
        """Leave the object `file` at `filepath`: a file that child processes can open. What was there is replaced.

        With SOCKD_STORAGE_LINK=1 it may be a symbolic link to memory, which cannot be written to."""
        read = Read(["s3.GetObject", bucket, file])
        message = read.prefetched()
        if message is not None:
            message.save(filepath, link=os.environ.get("SOCKD_STORAGE_LINK") == "1")
            read.done("region")
            return
        from sockd_storage import network

        read.from_network(network.get_file, bucket, file, filepath)

    def download_stream(self, bucket: str, file: str) -> memoryview:
        """The object `file`, read-only; what the initscript fetched is not copied."""
        read = Read(["s3.GetObject", bucket, file])
        message = read.prefetched()
        if message is not None:
            view = message.view
            read.done("region")
            return view
        from sockd_storage import network

        return read.from_network(network.get_bytes, bucket, file)

    def download_directory(self, bucket: str, prefix: str, path: str) -> None:
        """Download all objects whose keys begin with `prefix`, each to `path`/key. Raises: RuntimeError if there is none.

        To an initscript this is one LIST for each page and one GET for each key."""
        found = False
        for key in list(_list(bucket, prefix)):
            found = True
            target = os.path.join(path, key)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if not key.endswith("/"):  # a placeholder that some tools put where a directory would be
                self.download(bucket, key, target)
        if not found:
            raise RuntimeError(f"No objects found in bucket {bucket} with prefix {prefix}")


def _list(bucket: str, prefix: str) -> Iterator[str]:
    token: str | None = None
    while True:
        rpc = ["s3.ListObjectsV2", bucket, prefix, token] if token else ["s3.ListObjectsV2", bucket, prefix]
        keys, token = _list_page(Read(rpc), bucket, prefix, token)
        yield from keys
        if token is None:
            return


def _list_page(read: Read, bucket: str, prefix: str, token: str | None) -> tuple[list[str], str | None]:
    message = read.prefetched()
    if message is not None:
        from sockd_storage import listing

        try:
            page = listing.parse(bytes(message.view))
        except listing.NotAList:
            message = None
        else:
            read.done("region")
            return page
    from sockd_storage import network

    return read.from_network(network.list_page, bucket, prefix, token)


def get_instance(connection_string: str | None = None) -> storage:
    """As `storage.get_instance`."""
    return storage.get_instance(connection_string)


def unique_name(name: str) -> str:
    """As `storage.unique_name`."""
    return storage.unique_name(name)


def upload(bucket: str, file: str, filepath: str) -> str:
    """As `storage.upload`."""
    return get_instance().upload(bucket, file, filepath)


def upload_stream(bucket: str, file: str, data: BinaryIO | bytes | memoryview) -> str:
    """As `storage.upload_stream`."""
    return get_instance().upload_stream(bucket, file, data)


def download(bucket: str, file: str, filepath: str | None = None) -> memoryview | None:
    """As `storage.download`; without a path it gives the bytes, as `download_stream` does."""
    if filepath is None:
        return get_instance().download_stream(bucket, file)
    get_instance().download(bucket, file, filepath)
    return None


def download_stream(bucket: str, file: str) -> memoryview:
    """As `storage.download_stream`."""
    return get_instance().download_stream(bucket, file)


def download_directory(bucket: str, prefix: str, path: str) -> None:
    """As `storage.download_directory`."""
    get_instance().download_directory(bucket, prefix, path)
