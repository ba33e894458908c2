"""Local images on their way to a worker: an archive as it is, a layout's directory as an archive, or the standard input.

The worker reads no path that a client names: it may be on another machine, and runs as root.
"""

from __future__ import annotations

import os
import sys
import tarfile
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from sockd.base.errors import BadImage
from sockd.client.console.client import Management
from sockd.client.console.output import USAGE, Failure

PIECE_BYTES = 1 << 20


def imported(image: str, management: Management, show: Callable[[str], None]) -> dict[str, Any]:
    """Have the worker import an image, which is uploaded if it is local; what `sockd images ls` shows of it. Raises: Failure."""
    from sockd.images.registry.reference import Reference

    refuse_layout(image)
    try:
        reference = Reference.parse(image)
    except BadImage as error:
        raise Failure(f"{image[:80]!r} is no image reference", why=error.message, exit_code=USAGE) from None
    if reference.kind == "registry":
        return _posted(management, show, body=_json(image), headers={"content-type": "application/json"})
    path = Path(reference.path)
    if reference.kind != "stdin":
        _check(path)
    show("sending the standard input" if reference.kind == "stdin" else f"sending {image}")
    with closing(_pieces(reference.kind, path)) as pieces:
        return _posted(management, show, body=pieces, query={"reference": str(reference)})


def refuse_layout(image: str) -> None:
    """Raises: Failure: what would be taken for a reference to Docker Hub is a layout's directory."""
    if not is_local(image) and Path(image, "oci-layout").is_file():
        why = "without oci: it would be the name of an image in a registry"
        raise Failure(f"{image!r} is an OCI layout's directory", why=why, fix=f"--image oci:{image}", exit_code=USAGE)


def _check(path: Path) -> None:
    """Raises: Failure if this is no image, as far as a look at the path tells: before a directory is sent."""
    if not path.exists():
        raise Failure(f"{str(path)!r} does not exist", exit_code=USAGE)
    if path.is_file() and not path.stat().st_size:
        raise Failure(f"{str(path)!r} is empty", fix="docker save IMAGE -o FILE.tar", exit_code=USAGE)
    if path.is_dir() and not (path / "oci-layout").is_file():
        raise Failure(
            f"{str(path)!r} is not an OCI layout: it has no file 'oci-layout'",
            fix="`docker save IMAGE -o FILE.tar` or `skopeo copy docker-daemon:IMAGE oci:DIR` writes one",
            exit_code=USAGE,
        )


def is_local(image: str) -> bool:
    """Whether a worker has to be sent it."""
    return (
        image == "-"
        or image.startswith(("/", "./", "../", "oci:", "oci-archive:", "docker-archive:"))
        or image.endswith((".tar", ".tar.gz", ".tgz", ".tar.zst"))
    )


def _posted(management: Management, show: Callable[[str], None], **request: Any) -> dict[str, Any]:
    row: dict[str, Any] = management.result(management.lines("POST", "images", **request), show)
    return row


def _json(image: str) -> bytes:
    import json

    return json.dumps({"reference": image}).encode()


def _pieces(kind: str, path: Path) -> Generator[bytes, None, None]:
    if kind == "stdin":
        yield from _read(sys.stdin.buffer)
    elif path.is_dir():
        yield from _archived(path)
    else:
        with open(path, "rb") as file:
            yield from _read(file)


def _read(file: Any) -> Iterator[bytes]:
    while piece := file.read(PIECE_BYTES):
        yield piece


def _archived(directory: Path) -> Iterator[bytes]:
    """A layout's directory as a tar file, which a thread writes into a pipe. Raises: Failure if it cannot be read."""
    ours, theirs = os.pipe()
    failed: list[OSError] = []

    def write() -> None:
        try:
            with open(theirs, "wb") as file, tarfile.open(fileobj=file, mode="w|") as archive:
                archive.add(directory, ".")
        except BrokenPipeError:
            pass  # the worker refuses the image; its answer says why
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    with open(ours, "rb") as file:
        yield from _read(file)
    thread.join()
    if failed:
        raise Failure(f"{str(directory)!r} cannot be read", why=str(failed[0]))
