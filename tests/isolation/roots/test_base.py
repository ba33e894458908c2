"""What a base copies of the host's /etc."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

import pytest

from sockd.isolation.roots.base import Base, copy_tree, populate


def test_the_directory_of_a_base_is_closed_and_the_base_is_open(tmp_path: Path) -> None:
    path = tmp_path / "base"
    base = Base.build(path, ())
    try:
        assert path.stat().st_mode & 0o777 == 0o755  # processes with other uids stand on it
    finally:
        base.close()
    assert path.stat().st_mode & 0o777 == 0o700  # the host sees this, without the mount


def test_a_base_is_built_while_a_child_that_was_just_forked_holds_one_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child's copy of a descriptor that was open for writing at the fork lasts until its exec."""
    path = tmp_path / "base"
    held: list[IO[str]] = []

    def populate_and_hold(root: Path) -> None:
        populate(root)
        held.append((root / "etc" / "passwd").open("a"))

    monkeypatch.setattr("sockd.isolation.roots.base.populate", populate_and_hold)
    base = Base.build(path, ())
    try:
        with pytest.raises(OSError, match="Read-only"):
            (path / "etc" / "passwd").open("a")
    finally:
        base.close()
        held[0].close()


def test_links_permissions_and_readable_files_of_a_directory_are_copied(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "certs" / "more").mkdir(parents=True)
    (source / "certs" / "root.pem").write_text("a certificate")
    (source / "certs" / "0a1b2c.0").symlink_to("root.pem")
    (source / "certs" / "nowhere").symlink_to("/nowhere/at/all")
    (source / "certs" / "more").chmod(0o711)
    (source / "private.key").write_text("of root alone")
    (source / "private.key").chmod(0o600)
    (target / "certs").mkdir(parents=True)
    copy_tree(str(source), str(target))
    copied = {str(path.relative_to(target)): path for path in target.rglob("*")}
    assert set(copied) == {"certs", "certs/more", "certs/root.pem", "certs/0a1b2c.0", "certs/nowhere"}
    assert copied["certs/root.pem"].read_text() == "a certificate"
    assert os.readlink(copied["certs/0a1b2c.0"]) == "root.pem"
    assert os.readlink(copied["certs/nowhere"]) == "/nowhere/at/all"
    assert copied["certs/more"].stat().st_mode & 0o777 == 0o711
