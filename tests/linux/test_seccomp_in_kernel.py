"""The seccomp policies in the kernel: what it refuses to a real process that installs them."""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
import sys
from base64 import b64encode

import pytest

from sockd.linux.seccomp import compiler, seccomp
from sockd.linux.syscall_table import FIRST_UNKNOWN, NUMBERS
from tests.linux.seccomp_policies import DENIED_TO_ALL, FILTERS, FOR_ZYGOTES
from tests.support.emulated import not_in_uml

INSTALL = """
import ctypes, errno, os, sys
from base64 import b64decode

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

class Fprog(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_char_p)]

def install(encoded):
    program = b64decode(encoded)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, ctypes.byref(Fprog(len(program) // 8, program)), 0, 0) == 0, os.strerror(ctypes.get_errno())

def outcome(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
    return "ok" if result >= 0 else errno.errorcode[ctypes.get_errno()]

for encoded in sys.argv[1].split(","):
    install(encoded)
"""


def under(policies: list[str], code: str) -> subprocess.CompletedProcess[str]:
    """What a fresh interpreter does with `code` once it has put itself under these filters, one after the other."""
    programs = ",".join(b64encode(make()).decode() for policy in policies for make in FILTERS[policy])
    return subprocess.run(
        [sys.executable, "-I", "-c", INSTALL + code, programs], capture_output=True, text=True, timeout=15
    )


def outcomes(policies: list[str], *calls: tuple[str | int, ...]) -> list[str]:
    numbered = [(NUMBERS[call[0]] if isinstance(call[0], str) else call[0], *call[1:]) for call in calls]
    result = under(policies, f"for call in {numbered!r}: print(outcome(*call), flush=True)")
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


def test_the_kernel_denies_what_the_filter_denies() -> None:
    # The kernel lets its own uprobe trampolines past every filter (seccomp.c, 6.14) and kills any other caller.
    denied = [name for name in DENIED_TO_ALL + FOR_ZYGOTES if name in NUMBERS and name not in ("uprobe", "uretprobe")]
    assert outcomes(["handler"], *((name, -1, -1, -1, -1, -1) for name in denied)) == ["EPERM"] * len(denied)


def test_the_kernel_answers_with_the_errno_of_each_check() -> None:
    assert outcomes(
        ["handler"],
        ("socket", 17, 3, 0),
        ("socket", 2, 1, 262),
        ("socket", 1, 1, 0),
        ("socket", 10, 1, 0),
        ("clone", 0x10000011, 0, 0, 0, 0),
        ("clone3", 0, 0),
        ("personality", 0x0040000),
        ("personality", 0xFFFFFFFF),
        ("ioctl", 0, 0x5412, 0),
        (FIRST_UNKNOWN, 0),
        (0x40000000 | NUMBERS["getpid"],),
        ("getpid",),
    ) == [
        "EAFNOSUPPORT",
        "EPROTONOSUPPORT",
        "ok",
        "ok",
        "EPERM",
        "ENOSYS",
        "EPERM",
        "ok",
        "EPERM",
        "ENOSYS",
        "ENOSYS",
        "ok",
    ]


@pytest.mark.root
def test_a_handler_under_its_zygotes_filter_may_do_only_what_both_allow() -> None:
    calls = [("chroot", 0), ("sethostname", 0, -1), ("getppid",), ("mount", 0, 0, 0, 0, 0)]
    assert outcomes(["zygote"], *calls) == ["EFAULT", "EINVAL", "ok", "EPERM"]
    assert outcomes(["handler of a zygote"], *calls) == ["EPERM", "EPERM", "ok", "EPERM"]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="machine code of x86_64")
@not_in_uml("takes int 0x80 for a call of x86_64")
def test_a_call_through_int_0x80_kills_the_process() -> None:
    # mov eax, 20 (getpid of i386); int 0x80; ret
    code = """
import mmap
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes.fromhex("b814000000cd80c3"))
ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
"""
    assert under(["handler"], code).returncode == -31  # SIGSYS


@pytest.mark.parametrize(
    "code",
    [
        "import subprocess; assert subprocess.run(['/bin/sh', '-c', 'exit 3']).returncode == 3",
        "import threading; t = threading.Thread(target=print, args=('in a thread',)); t.start(); t.join()",
        "import multiprocessing as m; p = m.get_context('fork').Process(target=int); p.start(); p.join(); assert p.exitcode == 0",
        "import multiprocessing as m; q = m.get_context('fork').Queue(); q.put(1); assert q.get() == 1",
        "from multiprocessing.shared_memory import SharedMemory as S; s = S(create=True, size=9); s.close(); s.unlink()",
        "import asyncio; asyncio.run(asyncio.create_subprocess_exec('/bin/true'))",
        "import ssl; ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname='x')",
        "import shutil, tempfile; shutil.copytree(os.path.dirname(ctypes.__file__), tempfile.mkdtemp(), dirs_exist_ok=True)",
        "import tempfile; d = tempfile.TemporaryDirectory(); os.mkfifo(d.name + '/fifo'); d.cleanup()",
        "import socket; socket.getaddrinfo('localhost', 80); socket.create_server(('127.0.0.1', 0)).close()",
        "import sqlite3; sqlite3.connect(':memory:').execute('select 1')",
        "os.posix_spawnp('true', ['true'], {}); os.wait()",
        "os.close(os.pidfd_open(os.getpid())); os.close(os.memfd_create('x')); os.getrandom(8); os.sched_getaffinity(0)",
    ],
    ids=lambda code: code.split(";")[0].replace("import ", ""),
)
def test_ordinary_python_works_under_the_filter(code: str) -> None:
    result = under(["handler of a zygote"], code)
    assert result.returncode == 0, result.stderr


def test_a_zygote_forks_a_child_into_its_namespaces() -> None:
    flags = seccomp.SANDBOX_NAMESPACES | 17
    code = f"""
pid = libc.syscall({NUMBERS["clone"]}, ctypes.c_ulong({flags}), 0, 0, 0, 0)
if pid == 0:
    os._exit(7)
assert pid > 0, os.strerror(ctypes.get_errno())
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
assert outcome({NUMBERS["clone"]}, {flags | seccomp.CLONE_NEWNS}, 0, 0, 0, 0) == "EPERM"
"""
    result = under(["zygote"], code)
    assert result.returncode == 0, result.stderr


def test_the_compiled_structure_is_the_kernels() -> None:
    assert compiler.SOCK_FILTER.size == 8 == ctypes.sizeof(ctypes.c_uint64)
    for make in itertools.chain.from_iterable(FILTERS.values()):
        assert len(make()) % compiler.SOCK_FILTER.size == 0
