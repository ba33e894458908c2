"""Facts of images: interpreters, libraries, packages and commands, found by names and first bytes alone."""

from __future__ import annotations

import stat
import struct
from typing import Any

import pytest

from sockd.base.file_tree import FileTree, Inode
from sockd.images.registry.image import ImageConfig
from sockd.images.store.image_facts import ImageFacts, Python, facts_of, libc_of


def elf(loader: bytes | None) -> bytes:
    """The start of a program with this loader."""
    header = (
        b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    )
    text = (loader or b"") + b"\0"
    kind = 1 if loader is None else 3
    return header + struct.pack("<IIQQQQQQ", kind, 4, 120, 0, 0, len(text), len(text), 1) + text


GLIBC, MUSL = elf(b"/lib64/ld-linux-x86-64.so.2"), elf(b"/lib/ld-musl-x86_64.so.1")


class Image:
    """Files by path: bytes (a program if they are ELF), "-> target", or None for a directory."""

    def __init__(self, files: dict[str, bytes | str | None]) -> None:
        self.tree: FileTree = {"": Inode(stat.S_IFDIR | 0o755)}
        self._data = b""
        for path, what in files.items():
            parts = path.split("/")
            for depth in range(1, len(parts)):
                self.tree.setdefault("/".join(parts[:depth]), Inode(stat.S_IFDIR | 0o755))
            if what is None:
                self.tree[path] = Inode(stat.S_IFDIR | 0o755)
            elif isinstance(what, str):
                self.tree[path] = Inode(stat.S_IFLNK | 0o777, target=what.removeprefix("-> "))
            else:
                mode = 0o755 if what.startswith((b"\x7fELF", b"#!")) else 0o644
                self.tree[path] = Inode(stat.S_IFREG | mode, size=len(what), layer=0, offset=len(self._data))
                self._data += what

    def read(self, layer: int, offset: int, size: int) -> bytes:
        return self._data[offset : offset + size]

    def facts(self, **config: Any) -> ImageFacts:
        return facts_of(self.tree, self, ImageConfig(**config))


def python(**fields: Any) -> Python:
    values = {"libc": "glibc", "version": "3.12", "prefix": "/usr/local"}
    return Python(**{**values, **fields})


DOCKER_S_PYTHON: dict[str, bytes | str | None] = {
    "usr/local/bin/python3.12": GLIBC,
    "usr/local/bin/python3": "-> python3.12",
    "usr/local/bin/python": "-> python3",
    "usr/local/bin/python3-config": b"#!/bin/sh",
    "usr/local/lib/python3.12/os.py": b"",
    "usr/local/lib/python3.12/__pycache__/os.cpython-312.pyc": b"",
    "usr/local/lib/python3.12/site-packages/awslambdaric/__init__.py": b"",
}
SITES = ("/usr/local/lib/python3.12/site-packages",)


def test_an_interpreter_is_found_once_with_its_library_and_packages() -> None:
    image = Image(DOCKER_S_PYTHON)
    facts = image.facts(entrypoint=("/usr/local/bin/python", "-m", "awslambdaric"))
    ours = python(
        path="/usr/local/bin/python",
        program="/usr/local/bin/python3.12",
        sites=SITES,
        awslambdaric=SITES[0],
        has_bytecode=True,
    )
    assert facts.pythons == (ours,) and facts.has_awslambdaric
    assert facts.command == "/usr/local/bin/python" and facts.files == len(image.tree)


def test_debian_s_interpreter_has_its_own_directories() -> None:
    image = Image(
        {
            "bin": "-> usr/bin",
            "usr/bin/python3.11": MUSL,
            "usr/bin/python3": "-> python3.11",
            "usr/lib/python3.11/os.py": b"",
            "usr/lib/python3/dist-packages": None,
            "usr/local/lib/python3.11/dist-packages": None,
        }
    )
    (found,) = image.facts().pythons
    assert found.sites == ("/usr/local/lib/python3.11/dist-packages", "/usr/lib/python3/dist-packages")
    assert (found.version, found.libc, found.prefix, found.has_bytecode) == ("3.11", "musl", "/usr", False)


@pytest.mark.parametrize("has_system_sites", [False, True])
def test_a_virtual_environment_is_an_interpreter_with_its_own_packages(has_system_sites: bool) -> None:
    image = Image(
        {
            **DOCKER_S_PYTHON,
            "app/.venv/pyvenv.cfg": f"include-system-site-packages = {str(has_system_sites).lower()}\n".encode(),
            "app/.venv/bin/python": "-> /usr/local/bin/python3",
            "app/.venv/lib/python3.12/site-packages/numpy/__init__.py": b"",
        }
    )
    _, found = image.facts().pythons
    own = "/app/.venv/lib/python3.12/site-packages"
    assert (found.path, found.program, found.is_virtual) == ("/app/.venv/bin/python", "/usr/local/bin/python3.12", True)
    assert found.sites == ((own, *SITES) if has_system_sites else (own,))
    first, _ = image.facts(env=("PATH=/app/.venv/bin:/usr/local/bin",)).pythons
    assert first == found


def test_the_command_is_looked_up_as_execvp_does() -> None:
    image = Image(
        {"bin/a": GLIBC, "usr/bin/a": GLIBC, "app/run": b"#!/bin/a", "app/text": b"text", "loop": "-> loop", "d": None}
    )
    found = [
        image.facts(entrypoint=(name,), env=("PATH=/usr/bin:/bin",), working_dir="/app").command
        for name in ("a", "/bin/a", "./run", "run", "./text", "/loop", "/d", "nothing", "../bin/a", "")
    ]
    assert found == ["/usr/bin/a", "/bin/a", "/app/run", "", "", "", "", "", "/bin/a", ""]
    assert image.facts(cmd=("/bin/a",)).command == "/bin/a" and image.facts().command == ""


def test_sizes_count_hard_links_once() -> None:
    image = Image({"a": b"1234"})
    image.tree["b"] = image.tree["a"]
    assert (image.facts().size_bytes, image.facts().files) == (4, 3)


@pytest.mark.parametrize(
    ("start", "libc"),
    [
        (GLIBC, "glibc"),
        (MUSL, "musl"),
        (elf(None), "static"),
        (b"#!/bin/sh\n" + bytes(100), "unknown"),
        (b"\x7fELF", "unknown"),
        (GLIBC[:70], "unknown"),
        (GLIBC[:32] + b"\xff" * 8 + GLIBC[40:], "unknown"),
        (b"\x7fELF" + b"\xff" * 200, "unknown"),
        (b"", "unknown"),
    ],
)
def test_a_program_s_loader_says_which_libc_it_needs(start: bytes, libc: str) -> None:
    assert libc_of(start) == libc


def test_links_without_end_and_interpreters_without_end_are_bounded() -> None:
    files: dict[str, bytes | str | None] = {f"l{number}": f"-> l{number + 1}" for number in range(100)}
    files["l100"] = GLIBC
    for number in range(100):
        files |= {f"v{number}/pyvenv.cfg": b"", f"v{number}/bin/python": "-> /usr/local/bin/python3.12"}
        files[f"v{number}/lib/python3.12/site-packages"] = None
    image = Image({**files, **DOCKER_S_PYTHON})
    facts = image.facts(entrypoint=("/l0",))
    assert facts.command == "" and len(facts.pythons) == 32


def test_working_directories_and_closed_ones_are_found() -> None:
    image = Image({"app/server": GLIBC, "home/node/app/server": GLIBC, "link": "-> home/node", "plain": b""})
    image.tree["home/node"].mode = stat.S_IFDIR | 0o700
    image.tree["home/node"].uid = 1000
    image.tree["etc/passwd"] = Inode(stat.S_IFREG | 0o644)
    for directory, is_there in {"": True, "/app": True, "/nowhere": False, "/plain": False, "/link/app": True}.items():
        assert image.facts(working_dir=directory, user="1000").has_working_dir is is_there
    assert image.facts(entrypoint=("/app/server",)).closed == ""
    for command in ("/home/node/app/server", "/link/app/server"):
        assert image.facts(entrypoint=(command,), user="1000").closed == ""
        assert image.facts(entrypoint=(command,)).closed == command.removesuffix("/app/server")
    assert image.facts(working_dir="/home/node/app").closed == "/home/node"
