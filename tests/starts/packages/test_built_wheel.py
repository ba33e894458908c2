"""Wheels from a build sandbox: which are accepted, and why others are refused."""

from __future__ import annotations

import io
import re
import stat
import zipfile
from pathlib import Path

import pytest

from sockd.starts.packages.built_wheel import BadWheel, check

NAME = "made_up-1.0-py3-none-any.whl"
METADATA = "made_up-1.0.dist-info/METADATA"
GOOD = {"made_up.py": "x = 1", METADATA: "Metadata-Version: 2.1\nName: Made.Up\nVersion: 1.0\n"}


def checked(
    tmp_path: Path, files: dict[str, str], filename: str = NAME, *, modes: dict[str, int] | None = None
) -> None:
    path = tmp_path / "built"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (modes or {}).get(name, stat.S_IFREG | 0o644) << 16
            archive.writestr(info, text)
    check(path, filename, "made-up", "1.0", max_bytes=1 << 20, max_files=10)


@pytest.mark.parametrize("filename", [NAME, "made_up-1.0-1-py3-none-any.whl", "Made_Up-1.0-py2.py3-none-any.whl"])
def test_a_wheel_of_the_distribution_is_accepted(tmp_path: Path, filename: str) -> None:
    checked(tmp_path, GOOD, filename)


@pytest.mark.parametrize(
    ("filename", "why"),
    [
        ("made_up-1.0.tar.gz", "not the name of a wheel"),
        ("../made_up-1.0-py3-none-any.whl", "not the name of a wheel"),
        ("made_up-1.0-py3-none-any.whl\n", "not the name of a wheel"),
        ("", "not the name of a wheel"),
        (f"made_up-1.0-py3-none-{'a' * 200}.whl", "not the name of a wheel"),
        ("other-1.0-py3-none-any.whl", "another distribution"),
        ("made_up-1.1-py3-none-any.whl", "another distribution"),
        ("made_up-1.0-cp27-cp27m-win32.whl", "not for Python"),
    ],
)
def test_a_file_name_of_another_wheel_is_refused(tmp_path: Path, filename: str, why: str) -> None:
    with pytest.raises(BadWheel, match=why):
        checked(tmp_path, GOOD, filename)


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"../a.py": ""}, "outside of it"),
        ({"/a.py": ""}, "outside of it"),
        ({"a/../../b.py": ""}, "outside of it"),
        ({"a\\b.py": ""}, "outside of it"),
        ({"a\x1b[31m.py": ""}, "outside of it"),
        ({"big.py": "x" * ((1 << 20) + 1)}, "packages.max_package_mb"),
        ({f"{number}.py": "" for number in range(10)}, "10"),
        ({"other-1.0.dist-info/METADATA": ""}, "one .dist-info"),
        ({"other-1.0.dist-info/RECORD": ""}, "one .dist-info"),
        ({"other.egg-info/PKG-INFO": ""}, "which is another distribution's"),
        ({"other.egg-info": ""}, "which is another distribution's"),
        ({"other-1.0.data/purelib/other.py": ""}, "which is another distribution's"),
        ({"made_up-1.0.data/purelib/other-1.0.dist-info/METADATA": ""}, "which is another distribution's"),
        ({"made_up-1.0.data/platlib/other.egg-info": ""}, "which is another distribution's"),
        ({"made_up-1.0.data/data/lib/python3.11/site-packages/other.py": ""}, "among the modules of others"),
        ({"made_up-1.0.data/data/other-1.0.dist-info/METADATA": ""}, "among the modules of others"),
        ({METADATA: "Name: other\nVersion: 1.0\n"}, "says that it is 'other' '1.0'"),
        ({METADATA: "Name: made-up\nVersion: 2\n"}, "says that it is 'made-up' '2'"),
        ({METADATA: "Name: made-up\n"}, "says that it is"),
    ],
)
def test_a_wheel_with_other_contents_is_refused(tmp_path: Path, files: dict[str, str], why: str) -> None:
    with pytest.raises(BadWheel, match=re.escape(why)):
        checked(tmp_path, GOOD | files)


def test_files_of_its_own_may_be_anywhere_else(tmp_path: Path) -> None:
    names = ("purelib/made_up_more.py", "platlib/made_up/x.so", "data/share/x", "scripts/made-up", "headers/made_up.h")
    checked(tmp_path, GOOD | {f"made_up-1.0.data/{name}": "" for name in names} | {"made_up-1.0.dist-info/RECORD": ""})


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO, stat.S_IFSOCK])
def test_what_is_no_plain_file_is_refused(tmp_path: Path, kind: int) -> None:
    with pytest.raises(BadWheel, match="neither a file nor a directory"):
        checked(tmp_path, GOOD | {"a.py": "/etc/shadow"}, modes={"a.py": kind | 0o777})


def test_data_that_is_not_what_the_directory_says_is_refused(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, text in GOOD.items():
            archive.writestr(name, text)
    for broken in (packed.getvalue().replace(b"x = 1", b"x = 2", 1), b"PK\3\4", packed.getvalue()[:-30]):
        (tmp_path / "built").write_bytes(broken)
        with pytest.raises(BadWheel, match="refused"):
            check(tmp_path / "built", NAME, "made-up", "1.0", max_bytes=1 << 20, max_files=10)
