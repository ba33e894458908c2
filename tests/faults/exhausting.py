"""Functions that take all there is of something, as text: what a test deploys. Each says what it met, if it lives."""

from __future__ import annotations

FORK_BOMB = """
import os
def f(event):
    speaks = True
    while True:
        try:
            speaks = bool(os.fork()) and speaks
        except OSError as error:
            if speaks:
                os.write(1, (error.strerror + "\\n").encode())
            speaks = False
"""
"""Every process forks for ever; only the first speaks, and once."""

THREADS = """
import _thread
def f(event):
    lock, started = _thread.allocate_lock(), 0
    lock.acquire()
    try:
        while True:
            _thread.start_new_thread(lock.acquire, ())
            started += 1
    except RuntimeError as error:
        return [started, str(error)]
    finally:
        lock.release()
"""

HOG = """
def f(event):
    kept = []
    for _ in range(192):
        kept.append(b"x" * (1 << 20))
"""

MEMORY = {
    "mmap": """
import mmap
def f(event):
    kept = []
    for _ in range(48):
        kept.append(mmap.mmap(-1, 4 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE))
""",
    "page-tables": """
import contextlib, mmap
def f(event):
    kept = []
    for _ in range(48):  # a page table of 4 KB for each page of zeros that is read
        kept.append(mmap.mmap(-1, 2 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ))
        with contextlib.suppress(OSError):  # EINVAL: a kernel without huge pages, such as user-mode-linux
            kept[-1].madvise(mmap.MADV_NOHUGEPAGE)
        for place in range(0, 2 << 30, 2 << 20):
            kept[-1][place]
""",
    "mlock": """
import ctypes, errno, mmap
libc = ctypes.CDLL(None, use_errno=True)
libc.mlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
def f(event):
    kept, locked = [], 0
    for _ in range(48):
        piece = mmap.mmap(-1, 4 << 20)
        kept.append(piece)
        if libc.mlock(ctypes.addressof(ctypes.c_char.from_buffer(piece)), len(piece)):
            return [locked >> 20, errno.errorcode[ctypes.get_errno()]]
        locked += len(piece)
""",
    "tmp": """
def f(event):
    with open("/tmp/big", "wb", buffering=0) as file:
        for _ in range(192):
            file.write(bytes(1 << 20))
""",
    "shm": """
def f(event):
    with open("/dev/shm/big", "wb", buffering=0) as file:
        for _ in range(192):
            file.write(bytes(1 << 20))
""",
    "memfd": """
import os
def f(event):
    fd = os.memfd_create("big")
    for _ in range(192):
        os.write(fd, bytes(1 << 20))
""",
    "sysv": """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype, libc.shmat.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
def f(event):
    for _ in range(48):
        number = libc.shmget(0, ctypes.c_size_t(4 << 20), 0o1600)
        if number < 0:
            return ["shmget", errno.errorcode[ctypes.get_errno()]]
        ctypes.memset(libc.shmat(number, None, 0), 1, 4 << 20)
""",
    "pipes": """
import fcntl, os, resource
def f(event):
    kept, taken = [], 0
    try:
        while taken < 192 << 20:
            pair = os.pipe()
            kept.append(pair)
            os.set_blocking(pair[1], False)
            try:
                fcntl.fcntl(pair[1], fcntl.F_SETPIPE_SZ, 1 << 20)
            except OSError:
                pass
            try:
                while True:
                    taken += os.write(pair[1], bytes(1 << 16))
            except BlockingIOError:
                pass
    except OSError as error:
        return [taken >> 20, error.strerror]
""",
    "sockets": """
import socket
def f(event):
    kept, taken = [], 0
    try:
        while taken < 192 << 20:
            pair = socket.socketpair()
            kept.append(pair)
            for one in pair:
                one.setblocking(False)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)
                try:
                    while True:
                        taken += one.send(bytes(1 << 16))
                except BlockingIOError:
                    pass
    except OSError as error:
        return [taken >> 20, error.strerror]
""",
}
"""Every way to hold memory that we know of. Each ends at 192 MB, should its limit not hold."""

PAGE_CACHE = """
import os
def f(event):
    seen = 0
    for directory, _, names in os.walk("/usr"):
        for name in names:
            try:
                with open(os.path.join(directory, name), "rb", buffering=0) as file:
                    while data := file.read(1 << 20):
                        seen += len(data)
            except OSError:
                continue
            if seen >> 20 >= event:
                return seen >> 20
    return seen >> 20
"""
"""Reads the event's number of megabytes of files."""

FILL_TMP = """
import os, shutil
def f(event):
    written = 0
    try:
        with open("/tmp/big", "wb", buffering=0) as file:
            while True:
                written += file.write(bytes(1 << 16))
    except OSError as error:
        return [written, error.strerror, shutil.disk_usage("/tmp").free]
"""

INODES = """
import os
def f(event):
    for name in os.listdir("/tmp"):  # of the last call
        os.unlink(f"/tmp/{name}")
    made = 0
    try:
        while made < 1_000_000:
            os.close(os.open(f"/tmp/{made}", os.O_CREAT | os.O_WRONLY))
            made += 1
    except OSError as error:
        return [made, error.strerror]
"""

DESCRIPTORS = """
import os, socket
def f(event):
    kept = []
    def all_of(make):
        made = 0
        try:
            while True:
                kept.append(make())
                made += 1
        except OSError as error:
            return [made, error.strerror]
        finally:
            for one in kept:
                os.close(one)
            kept.clear()
    return [
        all_of(lambda: os.open("/dev/null", os.O_RDONLY)),
        all_of(lambda: socket.socket().detach()),
        all_of(lambda: os.memfd_create("x")),
    ]
"""

SPINNERS = """
import hashlib, threading, time
def f(event):
    ends = time.monotonic() + event
    def spin():
        while time.monotonic() < ends:
            hashlib.pbkdf2_hmac("sha256", b"x", b"y", 5000)  # without the GIL
    threads = [threading.Thread(target=spin) for _ in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.process_time()
"""
"""64 threads that all run at once, for the event's seconds; the CPU seconds that they got."""

STDOUT_FLOOD = """
import os
def f(event):
    block, written = b"x" * (1 << 20), 0
    while written < event:
        written += os.write(1, block)
    return written
"""

LOG_AFTER_ANSWER = """
import os, threading
def shout():
    while True:
        os.write(1, b"x" * (1 << 16))
def f(event):
    threading.Thread(target=shout, daemon=True).start()
    return 1
"""
