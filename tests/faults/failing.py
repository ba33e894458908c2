"""Functions that fail, each in its own way, as text; and what the worker must say of it."""

from __future__ import annotations

import sys

NUL_ERROR = "SyntaxError" if sys.version_info >= (3, 11, 4) else "ValueError"
"""What Python says of a NUL byte in source code."""

RAISING: dict[str, tuple[str | bytes, str, str]] = {
    "an exception of its own": (
        "class Odd(Exception): pass\ndef deep(): raise Odd('no good')\ndef f(event): deep()",
        "Odd",
        "no good",
    ),
    "a group of exceptions": (
        "def f(event): raise ExceptionGroup('several', [ValueError(1), KeyError(2)])",
        "ExceptionGroup",
        "several",
    ),
    "one whose text cannot be made": (
        "class E(Exception):\n def __str__(self): raise ValueError('x')\ndef f(event): raise E()",
        "E",
        "cannot be made",
    ),
    "one whose attributes cannot be read": (
        "class E(Exception):\n def __getattribute__(self, name): raise KeyError(name)\ndef f(event): raise E()",
        "E",
        "cannot be read: KeyError",
    ),
    "a BaseException": ("class E(BaseException): pass\ndef f(event): raise E('base')", "E", "base"),
    "KeyboardInterrupt": ("def f(event): raise KeyboardInterrupt", "KeyboardInterrupt", ""),
    "StopIteration": ("def f(event): raise StopIteration(3)", "StopIteration", "3"),
    "recursion without end": ("def f(event): return f(event)", "RecursionError", "recursion"),
    "a message of 50 MB": ("def f(event): raise ValueError('x' * (50 << 20))", "ValueError", "xxx"),
}
"""What it does -> (code, errorType, a part of errorMessage)."""

NOT_PYTHON: dict[str, tuple[str | bytes, str, str]] = {
    "an open parenthesis": ("def f(event):\n  return (1,\n", "SyntaxError", "line 2"),
    "tabs and spaces": ("def f(event):\n\tx=1\n        y=2\n", "TabError", "line 3"),
    "bytes that are not UTF-8": (b"def f(event): return '\xff'\n", "SyntaxError", "utf-8"),
    "a NUL byte": (b"def f(event): return '\x00'\n", NUL_ERROR, "null byte"),
    "brackets 5000 deep": ("x = " + "(" * 5000 + ")" * 5000 + "\ndef f(event): pass", "SyntaxError", "nested"),
    "no handler": ("x = 1\n", "Runtime.HandlerNotFound", "'f'"),
    "a handler that is a number": ("f = 3\n", "Runtime.HandlerNotFound", "not callable"),
}

NOT_JSON = {
    "bytes that are no text": "return [b'\\xff']",
    "a bytearray": "return bytearray(b'x')",
    "a key of bytes that are no text": "return {b'\\xff': 1}",
    "a set": "return {1}",
    "an object": "return object()",
    "a generator in a list": "return [(n for n in [1])]",
    "a list in itself": "x = []; x.append(x); return x",
    "lists 100 000 deep": "x = []\n for _ in range(100_000): x = [x]\n return x",
    "a tuple as key": "return {(1, 2): 3}",
    "a number of 5000 digits": "return 10 ** 5000",
    "a dict that lies": "return type('D', (dict,), {'items': lambda self: int('x')})(a=1)",
}
"""What it returns -> the body of its handler."""

EXITING = {
    "sys.exit(0)": ("import sys\ndef f(event): sys.exit(0)", "without providing a reason"),
    "sys.exit(1)": ("import sys\ndef f(event): sys.exit(1)", "exit status 1"),
    "sys.exit('why')": ("import sys\ndef f(event): sys.exit('why')", "exit status 1"),
    "os._exit(9)": ("import os\ndef f(event): os._exit(9)", "exit status 9"),
    "exit() while imported": ("import sys\nsys.exit(3)\ndef f(event): pass", "exit status 3"),
    "exit in a thread": (
        "import os, threading\ndef f(event):\n threading.Thread(target=os._exit, args=(5,)).start()\n"
        " threading.Event().wait()",
        "exit status 5",
    ),
    "exit while its error is told": (
        "import os\nclass E(Exception):\n def __str__(self): os._exit(7)\ndef f(event): raise E()",
        "exit status 7",
    ),
}

CRASHING = {
    "a null pointer": ("import ctypes\ndef f(event): ctypes.string_at(0)", "segmentation fault"),
    "abort()": ("import os\ndef f(event): os.abort()", "signal"),
    "a division by zero in C": (
        "import ctypes, mmap\ncode = mmap.mmap(-1, 4096, prot=7)\ncode.write(bytes.fromhex('31c9f7f1c3'))\n"
        "def f(event): ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()",
        "floating point exception",
    ),
    "an illegal instruction": (
        "import ctypes, mmap\ncode = mmap.mmap(-1, 4096, prot=7)\ncode.write(bytes.fromhex('0f0b'))\n"
        "def f(event): ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()",
        "illegal instruction",
    ),
    "a stack without end": (
        # A function in machine code that calls itself: from 3.14 on Python looks how much of its stack is left.
        "import ctypes, mmap\ncode = mmap.mmap(-1, 4096, prot=7)\ncode.write(bytes.fromhex('e8fbffffff'))\n"
        "def f(event): ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()",
        "segmentation fault",
    ),
}

HANGING = {
    "sleep with every signal ignored": (
        "import signal, threading\nfor number in range(1, 65):\n try: signal.signal(number, signal.SIG_IGN)\n"
        " except (OSError, ValueError): pass\ndef f(event): threading.Event().wait()"
    ),
    "C code that holds the GIL": "import ctypes\ndef f(event): ctypes.PyDLL(None).sleep(100)",
    "a regular expression": "import re\ndef f(event): re.match('(a+)+$', 'a' * 60 + 'b')",
    "an uninterruptible wait (vfork)": (
        "import ctypes\nlibc = ctypes.PyDLL(None)\ndef f(event):\n if libc.vfork() == 0:\n  while True: libc.pause()"
    ),
    "a read that nobody answers": "import os\nreader, writer = os.pipe()\ndef f(event): os.read(reader, 1)",
    "asyncio": "import asyncio\nasync def f(event): await asyncio.Event().wait()",
    "children that hang, too": (
        "import os, signal\ndef f(event):\n for _ in range(5):\n  if os.fork() == 0: os.setsid(); break\n"
        " signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\n while True: pass"
    ),
}

PATCHING = """
import builtins, json, os, socket, sys, time
class Patched(Exception): pass
def boom(*arguments, **more): raise Patched
for module in (json, socket, os, time):
    for name in list(vars(module)):
        if callable(getattr(module, name)) and not name.startswith("__"):
            try: setattr(module, name, boom)
            except Exception: pass
for name in ("len", "isinstance", "str", "bytes", "print", "open", "list", "dict", "min", "max", "map", "getattr"):
    setattr(builtins, name, boom)
def f(event): return "patched"
"""

CLOCK = """
import ctypes, errno, time
libc = ctypes.CDLL(None, use_errno=True)
class Timespec(ctypes.Structure): _fields_ = [("s", ctypes.c_long), ("ns", ctypes.c_long)]
def refused(result): return errno.errorcode[ctypes.get_errno()] if result else "done"
def f(event, context):
    said = [
        refused(libc.clock_settime(time.CLOCK_REALTIME, ctypes.byref(Timespec(0, 0)))),
        refused(libc.settimeofday(ctypes.byref(Timespec(0, 0)), None)),
    ]
    now = time.time()
    time.time = time.monotonic = lambda: now - 86400
    time.monotonic_ns = time.time_ns = lambda: 0
    while event == "hang":
        pass
    return said
"""

RECURSION = """
import http.client, json
def f(event):
    connection = http.client.HTTPConnection("127.0.0.1", event["port"], timeout=60)
    connection.request("POST", f"/run/{event['name']}", json.dumps({**event, "depth": event["depth"] + 1}))
    response = connection.getresponse()
    answer = json.loads(response.read())
    return answer if response.status == 200 else [event["depth"], response.status, answer["errorType"]]
"""
