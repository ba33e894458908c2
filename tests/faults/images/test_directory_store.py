"""The chunk store of images is a directory: it is full, its chunks are damaged, or it was emptied."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sockd.linux import syscalls
from sockd.linux.syscalls import MountFlag
from tests.daemon.images.test_images import upload
from tests.daemon.running import DeployFailed, RunningDaemon
from tests.faults.images.image_worker import (
    STORE_ERRORS,
    ImageWorker,
    drop_sandboxes,
)
from tests.support.cases import Happened, case

pytestmark = [pytest.mark.root, pytest.mark.timeout(400)]


@case(
    "I46",
    "the chunk store is a directory on a disk that is full",
    expect="a deploy gets 507, earlier functions go on, and sockd images gc makes room for the next deploy",
)
def test_a_full_disk(python: bytes, tmp_path: Path, happened: Happened) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    syscalls.mount("tmpfs", str(disk), "tmpfs", MountFlag.NOSUID | MountFlag.NODEV, "size=44m")
    try:
        (disk / "chunks").mkdir()
        daemon = RunningDaemon.start(tmp_path / "state", f'[images]\nstore = "{disk}/chunks"\ngc_grace_s = 0\n')
        try:
            worker = ImageWorker(daemon, None, None, python, tmp_path)  # type: ignore[arg-type]
            worker.deployed("first")
            assert worker.asked("first").status == 200
            with pytest.raises(DeployFailed, match="is full") as refused:
                worker.new_image("large", data_bytes=24 << 20, runs=False)
            happened(f"{refused.value.status}: {refused.value.message[:100]}")
            assert refused.value.status == 507
            drop_sandboxes(worker, "first")
            assert worker.asked("first").status == 200
            collected = daemon.manage("POST", "/images/gc").json["store"]
            assert collected["deleted"] and collected["problems"] == [], collected
            happened(f"{collected['deleted']} chunks deleted")
            worker.deployed("small")
            assert worker.asked("small").status == 200
            assert daemon.terminate() == 0
        finally:
            daemon.close()
    finally:
        syscalls.umount(str(disk))


DAMAGES = {
    "changed": "Images.Tampered",
    "cut": "Images.Tampered",
    "removed": "Images.ChunkMissing",
    "forbidden": "Images.ChunkUnreadable",
    "replaced by directories": "Images.Tampered",
}
"""The damages of a store, and the error that the function's caller gets."""


@case(
    "I50",
    "chunks of a store in a directory are changed by one bit, cut off, removed or made unreadable, and images are deployed",
    expect="a deploy mends the store, for its image and for a new one that shares chunks; before, the error says so",
)
@pytest.mark.parametrize("how", DAMAGES)
def test_chunks_that_are_damaged_are_mended(python: bytes, tmp_path: Path, happened: Happened, how: str) -> None:
    (tmp_path / "chunks").mkdir()
    settings = f'[images]\nstore = "{tmp_path}/chunks"\ncache_mb = 0\nprofile_mb = 0\n'
    daemon = RunningDaemon.start(tmp_path / "state", settings)
    try:
        worker = ImageWorker(daemon, None, None, python, tmp_path)  # type: ignore[arg-type]
        digest = worker.deployed("damaged")
        assert worker.asked("damaged").status == 200
        happened(f"{damage(tmp_path / 'chunks' / 'roots', how)} chunks")
        assert upload(daemon, tmp_path / "layout-1") == digest, "while the worker runs"
        assert daemon.terminate() == 0
        daemon.close()
        daemon = worker.daemon = RunningDaemon.start(tmp_path / "state", settings)
        assert worker.asked("damaged").json["version"] == "damaged-1"
        assert daemon.terminate() == 0
        daemon.close()
        damage(tmp_path / "chunks" / "roots", how)
        daemon = worker.daemon = RunningDaemon.start(tmp_path / "state", settings)
        happened(worker.fails_typed("damaged", DAMAGES[how]))
        assert f"of the image {digest[:19]}: deploy that again" in worker.asked("damaged").json["errorMessage"]
        worker.deployed("sharing")
        assert worker.asked("sharing").json["version"] == "sharing-2"
        assert upload(daemon, tmp_path / "layout-1") == digest, "which the worker has not forgotten"
        assert worker.asked("damaged").json["version"] == "damaged-1"
        assert daemon.terminate() == 0
    finally:
        daemon.close()


def damage(directory: Path, how: str) -> int:
    """All chunks below a directory; how many."""
    chunks = [path for path in directory.rglob("*") if path.is_file()]
    for chunk in chunks:
        data = chunk.read_bytes()
        chunk.unlink()
        if how == "forbidden":
            chunk.write_bytes(data)
            chunk.chmod(0o600)  # the worker may read it, its agent may not
        elif how == "replaced by directories":
            chunk.mkdir()
            (chunk / "file").touch()
        elif how != "removed":
            chunk.write_bytes(data[:-1] if how == "cut" else bytes([data[0] ^ 1]) + data[1:])
    return len(chunks)


@case(
    "I49",
    "all objects of the chunk store are removed, while its worker is stopped, and while it runs",
    expect="the function fails with a typed error, and serves after its image was deployed again",
)
@pytest.mark.parametrize("running", [False, True], ids=["stopped", "running"])
def test_a_store_that_was_emptied(python: bytes, tmp_path: Path, happened: Happened, running: bool) -> None:
    (tmp_path / "chunks").mkdir()
    settings = f'[images]\nstore = "{tmp_path}/chunks"\ncache_mb = 0\nprofile_mb = 0\n'
    daemon = RunningDaemon.start(tmp_path / "state", settings)
    try:
        worker = ImageWorker(daemon, None, None, python, tmp_path)  # type: ignore[arg-type]
        digest = worker.deployed("emptied")
        assert worker.asked("emptied").status == 200
        if not running:
            assert daemon.terminate() == 0
        for entry in (tmp_path / "chunks").iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        if not running:
            daemon.close()
            daemon = worker.daemon = RunningDaemon.start(tmp_path / "state", settings)
            happened(worker.fails_typed("emptied", *STORE_ERRORS))
        assert upload(daemon, tmp_path / "layout-1") == digest
        drop_sandboxes(worker, "emptied")
        assert worker.asked("emptied").json["version"] == "emptied-1"
        assert daemon.terminate() == 0
    finally:
        daemon.close()
