"""Which sources of an image have no bytecode, and what a hostile answer about them can do."""

from __future__ import annotations

import stat
import struct
from typing import Any

import pytest

from sockd.images.registry.bytecode import HEADER
from sockd.images.registry.image import ImageConfig
from sockd.images.registry.limits import Limits
from sockd.images.store import missing_bytecode
from sockd.images.store.missing_bytecode import CompiledBatch, CompileJob, add_bytecode, compile_jobs
from tests.images.store.test_image_facts import GLIBC, Image

LIBRARY = "usr/local/lib/python3.12"
SITE = f"{LIBRARY}/site-packages"
MAGIC = b"\xcb\x0d\r\n"
PYTHON: dict[str, bytes | str | None] = {
    "usr/local/bin/python3.12": GLIBC,
    "usr/local/bin/python3": "-> python3.12",
    f"{LIBRARY}/os.py": b"x = 1",
}


def pyc(flags: int = 0, time_s: int = 0, size: int = 5) -> bytes:
    return HEADER.pack(MAGIC, flags, time_s, size) + b"code"


def jobs_of(image: Image, limits: Limits | None = None, **config: Any) -> tuple[CompileJob, ...]:
    settings = ImageConfig(**config)
    return compile_jobs(image.tree, image, image.facts(**config), settings, limits or Limits())


def sources_of(image: Image, **config: Any) -> list[str]:
    return [path for job in jobs_of(image, **config) for batch in job.batches for path in batch]


def test_an_image_without_python_has_nothing_to_compile() -> None:
    assert jobs_of(Image({"bin/x": GLIBC, "app/a.py": b"x"}), working_dir="/app") == ()


def test_sources_are_those_that_its_python_imports() -> None:
    image = Image(
        {
            **PYTHON,
            f"{LIBRARY}/json/__init__.py": b"y",
            f"{LIBRARY}/test/test_x.py": b"y",
            f"{SITE}/pkg/a.py": b"y",
            f"{SITE}/pkg/data.txt": b"y",
            f"{SITE}/pkg/empty.py": b"",
            "app/main.py": b"z",
            "app/.venv/lib/python3.11/site-packages/other.py": b"z",
            "srv/else.py": b"z",
            "more/m.py": b"z",
        }
    )
    found = sources_of(image, working_dir="/app", env=("PYTHONPATH=/more:rel",))
    assert found == [
        *(f"/{LIBRARY}/json/__init__.py", f"/{LIBRARY}/os.py", f"/{SITE}/pkg/a.py", f"/{SITE}/pkg/empty.py"),
        *("/app/main.py", "/more/m.py"),
    ]
    job = jobs_of(image)[0]
    assert (job.python, job.cache_tag, len(job.batches)) == ("/usr/local/bin/python3.12", "cpython-312", 1)


def test_a_virtual_environment_is_compiled_by_the_python_that_it_was_made_from() -> None:
    site = "venv/lib/python3.12/site-packages"
    environment: dict[str, bytes | str | None] = {
        "venv/pyvenv.cfg": b"home = /usr/local/bin\n",
        "venv/bin/python": "-> /usr/local/bin/python3.12",
        f"{site}/a.py": b"y",
        f"{SITE}/hidden.py": b"y",
    }
    image = Image({**PYTHON, **environment})
    (job,) = jobs_of(image, entrypoint=("/venv/bin/python", "-m", "a"))
    assert job.python == "/usr/local/bin/python3.12"
    assert [path for batch in job.batches for path in batch] == [f"/{LIBRARY}/os.py", f"/{site}/a.py"]


@pytest.mark.parametrize(
    ("cached", "lacks"),
    [
        (pyc(), False),
        (pyc(time_s=7), True),
        (pyc(size=6), True),
        (pyc(flags=1, time_s=7), False),
        (pyc(flags=3, time_s=7), False),
        (b"short", True),
        (b"", True),
        ("-> ../os.py", False),
        (None, False),
    ],
)
def test_bytecode_that_python_would_not_use_is_made_anew(cached: bytes | str | None, lacks: bool) -> None:
    image = Image({**PYTHON, f"{LIBRARY}/__pycache__/os.cpython-312.pyc": cached})
    assert bool(jobs_of(image)) is lacks


def test_a_python_that_reads_its_bytecode_elsewhere_gets_none() -> None:
    assert jobs_of(Image(PYTHON), env=("PYTHONOPTIMIZE=",))
    assert not jobs_of(Image(PYTHON), env=("PYTHONOPTIMIZE=2",))
    assert not jobs_of(Image(PYTHON), env=("PYTHONPYCACHEPREFIX=/tmp/x",))


def test_a_cache_that_is_no_directory_stays() -> None:
    assert not jobs_of(Image({**PYTHON, f"{LIBRARY}/__pycache__": b"a file"}))
    assert not jobs_of(Image({**PYTHON, f"{LIBRARY}/__pycache__": "-> /etc"}))


def test_what_is_too_old_hidden_deep_or_huge_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    old = {path.replace("3.12", "3.7"): what for path, what in PYTHON.items()}
    assert not jobs_of(Image(old))
    monkeypatch.setattr(missing_bytecode, "MOST_SOURCE_BYTES", 10)
    deep = "/".join(["d"] * 40)
    names = [f"{SITE}/{deep}/m.py", f"{SITE}/bad\udc80.py", f"{SITE}/new\nline.py", f"{SITE}/secret.py"]
    image = Image({**PYTHON, **dict.fromkeys(names, b"x"), f"{SITE}/huge.py": b"x" * 11})
    image.tree[f"{SITE}/secret.py"].mode = stat.S_IFREG | 0o600
    assert sources_of(image) == [f"/{LIBRARY}/os.py"]
    assert not jobs_of(Image(PYTHON), Limits(max_files=5)), "the image has as many files as it may"


def test_sources_are_compiled_in_batches_whose_answers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missing_bytecode, "BATCH_SOURCES", 2)
    monkeypatch.setattr(missing_bytecode, "BATCH_BYTES", 10)
    sizes = {"a": 1, "b": 1, "c": 1, "d": 30, "e": 9}
    image = Image({**PYTHON, **{f"{SITE}/{name}.py": b"x" * size for name, size in sizes.items()}})
    batches = jobs_of(image)[0].batches
    assert ["".join(path[-4] for path in batch) for batch in batches] == ["sa", "bc", "d", "e"]


def answer(*codes: bytes, magic: bytes = MAGIC) -> bytes:
    return magic + struct.pack(f"<{len(codes)}I", *map(len, codes)) + b"".join(codes)


def added(image: Image, data: bytes, most_bytes: int = 1 << 20) -> dict[str, bytes]:
    """The new files of an image whose one batch has this answer."""
    jobs = jobs_of(image)
    before = {path: id(inode) for path, inode in image.tree.items()}
    stored: list[bytes] = []

    def append(content: bytes) -> tuple[int, int]:
        stored.append(content)
        return 1, len(stored) - 1

    batch = CompiledBatch(0, 0, 0, len(data))
    count = add_bytecode(image.tree, jobs, [batch], lambda at, size: data[at : at + size], append, most_bytes)
    new = {path: inode for path, inode in image.tree.items() if before.get(path) != id(inode)}
    files = {path: stored[inode.offset] for path, inode in new.items() if stat.S_ISREG(inode.mode)}
    assert count == len(files)
    assert all(inode.mode == stat.S_IFREG | 0o644 for path, inode in new.items() if path in files)
    assert all(inode.mode == stat.S_IFDIR | 0o755 for path, inode in new.items() if path not in files)
    assert all((inode.uid, inode.gid) == (0, 0) for inode in new.values())
    assert not before.keys() - image.tree.keys()
    return files


def test_bytecode_gets_the_header_of_its_source() -> None:
    image = Image(PYTHON)
    image.tree[f"{LIBRARY}/os.py"].mtime_s = 1_700_000_000
    head = HEADER.pack(MAGIC, 0, 1_700_000_000, 5)
    assert added(image, answer(b"code")) == {f"{LIBRARY}/__pycache__/os.cpython-312.pyc": head + b"code"}
    assert not jobs_of(Image(PYTHON | {f"{LIBRARY}/__pycache__/os.cpython-312.pyc": pyc()}))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        MAGIC,
        answer(),
        answer(b"code", magic=b"abcd"),
        answer(b"code") + b"more",
        answer(b"code")[:-1],
        MAGIC + b"\xff" * 4 + b"code",
        answer(b""),
        answer(b"one", b"two"),
    ],
)
def test_a_malformed_answer_adds_nothing(data: bytes) -> None:
    image = Image(PYTHON)
    assert added(image, data) == {} and not any("__pycache__" in path for path in image.tree)


def test_bytecode_has_a_limit() -> None:
    assert added(Image(PYTHON), answer(b"c" * 100), most_bytes=100) == {}
