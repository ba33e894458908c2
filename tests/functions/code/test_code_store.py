"""Code versions: published whole or not at all, found again, removed."""

from __future__ import annotations

import importlib.util
import marshal
import os
import stat
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import CodeType

import pytest

from sockd.base.config import CodeConfig
from sockd.base.errors import BadArchive
from sockd.functions.code.code_store import CodeStore, compile_bytecode, read_text

Zipper = Callable[..., Path]


@pytest.fixture
def store(tmp_path: Path) -> CodeStore:
    (tmp_path / "code").mkdir()
    (tmp_path / "tmp").mkdir()
    return CodeStore(tmp_path / "code", tmp_path / "tmp", CodeConfig())


@pytest.fixture
def zip_of(tmp_path: Path) -> Zipper:
    def zip_of(**files: str) -> Path:
        path = tmp_path / "code.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in files.items():
                archive.writestr(name.replace("__", "."), text)
        return path

    return zip_of


def test_a_published_version_is_readable_by_all_and_named_by_its_digest(
    store: CodeStore, zip_of: Zipper, tmp_path: Path
) -> None:
    version = store.publish(zip_of(f__py="x = 1\n"))
    assert version.path == store.path(version.digest) == tmp_path / "code" / version.digest
    assert (version.path / "f.py").read_text() == "x = 1\n"
    assert (version.size_bytes, version.files) == (6, 1)
    assert stat.S_IMODE(version.path.stat().st_mode) == 0o755
    assert store.digests() == {version.digest}
    assert os.listdir(tmp_path / "tmp") == []


def test_the_same_code_is_one_version(store: CodeStore, zip_of: Zipper) -> None:
    assert store.publish(zip_of(f__py="x = 1\n")) == store.publish(zip_of(f__py="x = 1\n"))
    assert len(store.digests()) == 1


def bytecode(version_path: Path, name: str) -> Path:
    return Path(importlib.util.cache_from_source(str(version_path / name)))


def test_bytecode_names_the_paths_of_the_sandbox_and_never_looks_at_its_source(
    store: CodeStore, zip_of: Zipper
) -> None:
    version = store.publish(zip_of(f__py="def f(event): raise ValueError\n"))
    data = bytecode(version.path, "f.py").read_bytes()
    assert int.from_bytes(data[4:8], "little") == 0b01  # PEP 552: hash-based, unchecked
    code = marshal.loads(data[16:])
    assert isinstance(code, CodeType)
    assert code.co_filename == "/var/task/f.py"


def test_bytecode_is_readable_by_all_whatever_the_umask(store: CodeStore, zip_of: Zipper) -> None:
    before = os.umask(0o077)
    try:
        version = store.publish(zip_of(f__py="x = 1\n"))
    finally:
        os.umask(before)
    assert stat.S_IMODE(bytecode(version.path, "f.py").stat().st_mode) == 0o644
    assert stat.S_IMODE(bytecode(version.path, "f.py").parent.stat().st_mode) == 0o755


def test_a_syntax_error_does_not_fail_the_deploy_nor_the_other_modules(store: CodeStore, zip_of: Zipper) -> None:
    version = store.publish(zip_of(bad__py="def f(:\n", good__py="x = 1\n"))
    assert not bytecode(version.path, "bad.py").exists()
    assert bytecode(version.path, "good.py").exists()


def test_source_that_exhausts_the_compiler_does_not_fail_the_deploy(store: CodeStore, zip_of: Zipper) -> None:
    version = store.publish(
        zip_of(bomb__py="x = " + "(" * 100_000, vast__py="(1 << (1 << 40))\n" * 10, good__py="x = 1\n")
    )
    assert (version.path / "bomb.py").exists()


def test_a_refused_archive_leaves_nothing_behind(store: CodeStore, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "code.zip", "w") as archive:
        archive.writestr("first.py", "x = 1")
        archive.writestr("second.py", "y = 2")
    data = (tmp_path / "code.zip").read_bytes().replace(b"y = 2", b"y = 3", 1)  # fails its checksum after first.py
    (tmp_path / "code.zip").write_bytes(data)
    with pytest.raises(BadArchive):
        store.publish(tmp_path / "code.zip")
    assert store.digests() == set()
    assert os.listdir(tmp_path / "tmp") == []


def test_two_publishers_of_one_version_both_win(store: CodeStore, zip_of: Zipper, tmp_path: Path) -> None:
    path = zip_of(f__py="x = 1\n")
    versions = []
    threads = [threading.Thread(target=lambda: versions.append(store.publish(path))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(versions) == 4
    assert {version.digest for version in versions} == store.digests()
    assert os.listdir(tmp_path / "tmp") == []


def test_what_a_killed_daemon_left_is_removed_at_start(store: CodeStore, zip_of: Zipper, tmp_path: Path) -> None:
    kept = store.publish(zip_of(f__py=""))
    (tmp_path / "tmp" / "code-half" / "pkg").mkdir(parents=True)
    (tmp_path / "tmp" / "other").mkdir()
    store.recover()
    assert os.listdir(tmp_path / "tmp") == ["other"]
    assert store.digests() == {kept.digest}


def test_only_versions_that_no_one_needs_are_collected(store: CodeStore, zip_of: Zipper) -> None:
    old = store.publish(zip_of(f__py="1"))
    new = store.publish(zip_of(f__py="2"))
    assert store.gc(keep={new.digest}) == {old.digest}
    assert store.digests() == {new.digest}
    store.remove(new.digest)
    store.remove(new.digest)
    assert store.digests() == set()


@pytest.mark.parametrize("digest", ["", "..", "../../etc", "A" * 64, "a" * 63, "a" * 64 + "\n"])
def test_what_is_no_digest_names_no_path(store: CodeStore, digest: str) -> None:
    with pytest.raises(ValueError, match="not a digest"):
        store.path(digest)


def test_the_texts_of_a_version_are_read_when_they_are_there(store: CodeStore, zip_of: Zipper) -> None:
    version = store.publish(zip_of(f__py="", sockd__toml="\ufeffmemory_mb = 64\n"))
    assert version.settings() == "memory_mb = 64\n"
    assert version.ol_yaml() is None


def test_a_text_is_bounded_and_never_a_link_pipe_or_directory(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"x" * 11)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "pipe")
    for name in ("long", "binary", "directory", "link", "pipe"):
        with pytest.raises(BadArchive, match=name):
            read_text(tmp_path, name, 10)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a tmpfs")
def test_a_full_disk_is_no_capacity_and_leaves_nothing_behind(tmp_path: Path) -> None:
    # In a mount namespace of its own, so that no failure can leave the mount behind.
    script = f"""
import io, os, subprocess, zipfile
from pathlib import Path
from sockd.base.config import CodeConfig
from sockd.base.errors import NoCapacity
from sockd.functions.code.code_store import CodeStore
state = Path({str(tmp_path)!r})
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", state], check=True)
(state / "code").mkdir()
(state / "tmp").mkdir()
with zipfile.ZipFile("/proc/self/fd/0", "r") as given:
    pass
try:
    CodeStore(state / "code", state / "tmp", CodeConfig()).publish(Path("/proc/self/fd/0"))
except NoCapacity as error:
    print(error.message, os.listdir(state / "code"), os.listdir(state / "tmp"))
"""
    archive = tmp_path / "code.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as writer:
        writer.writestr("zeros", bytes(2 << 20))
    with open(archive, "rb") as stdin:
        done = subprocess.run(
            ["unshare", "--mount", sys.executable, "-c", script],
            stdin=stdin,
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout.startswith("the disk of the state directory is full; ") and done.stdout.endswith(" [] []\n")


def test_a_source_that_needs_more_memory_than_the_compiler_may_have_stays_source(tmp_path: Path) -> None:
    (tmp_path / "vast.py").write_text("x = [" + "0, " * 500_000 + "]\n")  # some 300 MB of syntax tree
    (tmp_path / "good.py").write_text("x = 1\n")
    compile_bytecode(tmp_path, memory_bytes=128 << 20)
    assert not bytecode(tmp_path, "vast.py").exists()
    compile_bytecode(tmp_path)
    assert bytecode(tmp_path, "vast.py").exists()
    assert bytecode(tmp_path, "good.py").exists()


def test_checking_an_archive_publishes_nothing(store: CodeStore, zip_of: Zipper, tmp_path: Path) -> None:
    store.check(zip_of(f__py="x = 1\n"))
    with pytest.raises(BadArchive):
        store.check(zip_of(**{"../f": ""}))
    assert store.digests() == set()
    assert os.listdir(tmp_path / "tmp") == []
