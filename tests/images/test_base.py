"""What a base copies of the host's /etc."""

from __future__ import annotations

import os
from pathlib import Path

from sockd.images.base import Base, copy_tree


def test_the_directory_of_a_base_is_closed_and_the_base_is_open(tmp_path: Path) -> None:
    path = tmp_path / "base"
    base = Base.build(path, ())
    try:
        assert path.stat().st_mode & 0o777 == 0o755  # processes with other uids stand on it
    finally:
        base.close()
    assert path.stat().st_mode & 0o777 == 0o700  # the host sees this, without the mount


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
