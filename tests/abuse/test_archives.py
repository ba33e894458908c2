"""Group A: archives that would write, link or unpack more than they should."""

from __future__ import annotations

import functools
import io
import os
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.abuse.archives import FILE, raw_zip
from tests.daemon.images.test_images import CONFIG, app, deploy, upload
from tests.daemon.running import DeployFailed, RunningDaemon, zipped
from tests.faults.watching import disk_usage
from tests.support.cases import Happened, case
from tests.support.images.image_layouts import Files, python_files, write_layout
from tests.support.private_worker import PrivateWorker
from tests.support.servers.package_index import wheel


@case(
    "A7",
    "deploy an image whose /dev, /proc and /tmp are symbolic links",
    expect="the function finds directories of its own there, and no link leads elsewhere",
)
def test_an_image_with_links_for_directories(happened: Happened, tmp_path: Path) -> None:
    links = Files(links={"tmp": "/app", "proc": "/", "dev": "../../.."})
    write_layout(tmp_path / "image", [python_files().tar(), app("1"), links], CONFIG, compress=False)
    daemon = RunningDaemon.start(tmp_path / "state")
    try:
        deploy(daemon, "linked", upload(daemon, tmp_path / "image"), timeout_s=30)
        found = {path: daemon.call("linked", {"what": "list", "path": path}) for path in ("/tmp", "/proc", "/dev")}
    finally:
        daemon.close()
    happened(f"{found['/tmp']} in /tmp, {len(found['/proc'])} entries in /proc, {found['/dev']} in /dev")
    assert found["/tmp"] == [] and "self" in found["/proc"] and {"null", "shm"} <= {*found["/dev"]}
    assert not {"app", "bin", "etc"} & {*found["/proc"], *found["/dev"]}


@functools.cache
def bomb() -> bytes:
    """A small zip of 300 MB of zeros that declares its true size."""
    with io.BytesIO() as buffer:
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            archive.writestr("f.py", "def f(event): return 1")
            with archive.open("zeros", "w") as file:
                for _ in range(300):
                    file.write(bytes(1 << 20))
        return buffer.getvalue()


def understated(data: bytes) -> bytes:
    """The same zip, whose directory and headers say that the last file is 10 bytes long."""
    changed = bytearray(data)
    for signature, offset in ((b"PK\1\2", 24), (b"PK\3\4", 22)):
        place = data.rindex(signature)
        changed[place + offset : place + offset + 4] = struct.pack("<I", 10)
    return bytes(changed)


GOOD = ("f.py", b"def f(event): return 1", FILE)
ARCHIVES: dict[str, Callable[[], bytes]] = {
    "../ in a name": lambda: raw_zip(GOOD, ("../x.py", b"x", FILE)),
    "../ inside a name": lambda: raw_zip(GOOD, ("a/../../../x.py", b"x", FILE)),
    "an absolute name": lambda: raw_zip(GOOD, ("/etc/cron.d/x", b"x", FILE)),
    "a backslash": lambda: raw_zip(GOOD, ("..\\x.py", b"x", FILE)),
    "a zero byte": lambda: raw_zip(GOOD, ("x\0.py", b"x", FILE)),
    "a symbolic link": lambda: raw_zip(GOOD, ("link", b"/etc/shadow", stat.S_IFLNK | 0o777)),
    "a file below a link": lambda: raw_zip(GOOD, ("d", b"/etc", stat.S_IFLNK | 0o777), ("d/x", b"x", FILE)),
    "a device": lambda: raw_zip(GOOD, ("null", b"", stat.S_IFCHR | 0o666)),
    "a FIFO": lambda: raw_zip(GOOD, ("pipe", b"", stat.S_IFIFO | 0o666)),
    "one name twice": lambda: raw_zip(GOOD, ("./f.py", b"x", FILE)),
    "file and directory": lambda: raw_zip(GOOD, ("a", b"x", FILE), ("a/b", b"x", FILE)),
    "100 000 entries": lambda: zipped({"f.py": "", **{f"n{number}": "" for number in range(100_000)}}),
    "a bomb of 300 MB": bomb,
    "a bomb that lies": lambda: understated(bomb()),
    "a truncated zip": lambda: zipped({"f.py": "def f(event): return 1"})[:-30],
    "a 300 byte name": lambda: raw_zip(GOOD, ("x" * 300, b"x", FILE)),
    "no zip at all": lambda: b"\x1f\x8b" + os.urandom(1000),
}


@case(
    "A8",
    "zips with ../, links, devices, 10^5 entries, bombs, lies",
    expect="each refused, with a reason; nothing unpacked",
)
def test_archives_are_refused_before_they_do_harm(worker: PrivateWorker, happened: Happened) -> None:
    state = worker.daemon.state
    before = sorted(os.listdir(state / "code"))
    used = disk_usage(state)
    reasons = {}
    for name, make in ARCHIVES.items():
        with pytest.raises(DeployFailed) as caught:
            worker.deploy("archive", make())
        reasons[name] = caught.value
        assert caught.value.status in (400, 413), (name, caught.value)
        assert str(state) not in caught.value.message, name
    happened(f"{len(reasons)} refused: {sorted({f'{each.status} {each.type}' for each in reasons.values()})}")
    assert sorted(os.listdir(state / "code")) == before
    assert [path for path in (state / "tmp").rglob("*") if path.is_file()] == []
    assert disk_usage(state) - used < 100 << 20
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("../x"))
    with pytest.raises(DeployFailed):
        worker.deploy("archive", tar.getvalue())
    climbing = wheel("climbing", "1.0", {"climbing.py": "", f"{'../' * 9}tmp/sockd-climbed": "x", "../beside": "x"})
    links = {"linked.py": "", "shadow": "/etc/shadow"}
    linked = wheel("linked", "1.0", links, modes={"shadow": stat.S_IFLNK | 0o777})
    for name, package in (("climbing", climbing), ("linked", linked)):
        try:
            worker.deploy(name, "def f(event): return 1", requirements=[name], wheels=[package])
            happened(f"a wheel {name}: installed without what is wrong with it")
        except DeployFailed as refused:
            happened(f"a wheel {name}: {refused.type}")
    assert not os.path.exists("/tmp/sockd-climbed")
    assert not [path for path in state.rglob("*") if path.name in ("beside", "sockd-climbed")]
    assert not [path for path in (state / "store" / "packages").rglob("*") if path.is_symlink()]
