"""Bytecode of images that have none: compiled once, at the import, by the image's own Python, which may be hostile."""

from __future__ import annotations

import io
import json
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sockd.images.registry.bytecode import HEADER
from tests.daemon.images.test_images import deploy, upload
from tests.daemon.running import RunningDaemon
from tests.support.images.image_layouts import MTIME_S, PYTHON, Files, python_files, write_layout

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]

TIMEOUT_S = 30
VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"
LIBRARY = f"opt/python/lib/{VERSION}"
SITE = f"{LIBRARY}/site-packages"
TAG = f"cpython-{sys.version_info[0]}{sys.version_info[1]}"
PROGRAM = f"""#!{PYTHON}
import sys
compiled = []
def audit(name, arguments):
    if name == "compile" and ".py" in str(arguments[1]):
        compiled.append(str(arguments[1]))
sys.addaudithook(audit)
import hashlib, http.client, json, os
sys.path.insert(0, "/app")
import package.module, beside
api = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])
def ask(method, path, body=None):
    api.request(method, "/2018-06-01/runtime/" + path, body)
    answer = api.getresponse()
    return answer.headers, answer.read()
def pycs():
    for root in ("/opt/python/lib", "/app"):
        for directory, names, files in os.walk(root):
            names.sort()
            for name in sorted(files):
                if name.endswith(".pyc"):
                    yield os.path.join(directory, name)
def seen():
    specs = [each.__spec__ for each in list(sys.modules.values()) if getattr(each, "__spec__", None)]
    cached = [each.cached for each in specs if each.cached and each.origin.endswith(".py")]
    files = {{path: hashlib.sha256(open(path, "rb").read()).hexdigest() for path in pycs()}}
    return {{"compiled": compiled, "missing": [each for each in cached if not os.path.exists(each)], "pycs": files,
             "bad": os.path.exists("/app/__pycache__/bad.{TAG}.pyc"), "file": package.module.f.__code__.co_filename,
             "modes": sorted({{oct(os.stat(path).st_mode & 0o7777) for path in files}})}}
while True:
    headers, event = ask("GET", "invocation/next")
    ask("POST", "invocation/" + headers["Lambda-Runtime-Aws-Request-Id"] + "/response", json.dumps(seen()))
"""
FILES = Files(
    plain={
        f"{SITE}/package/__init__.py": "",
        f"{SITE}/package/module.py": "def f():\n    return {'a', 'b', None, 1.5} and 'f'\n",
        "app/beside.py": "def g(x):\n    return x in {'p', 'q', 'r'}\n",
        "app/bad.py": "def f(:\n",
        "app/deep.py": "x = " + "(" * 5000 + ")" * 5000,
        "app/latin.py": b"x = '\xff'\n",
    },
    executable={"app/bootstrap": PROGRAM},
)
CONFIG = {
    "Entrypoint": ["/app/bootstrap"],
    "Env": ["PATH=/opt/python/bin", "PYTHONHASHSEED=7", "PYTHONHOME=/opt/python"],
    "WorkingDir": "/app",
}
IMPORTS = ("http.client", "json", "hashlib", "importlib.util", "tempfile", "struct", "warnings", "marshal")
HOSTILE = """
import http.client, importlib.util, os, sys, time
from .decoder import JSONDecoder
def loads(event):
    ATTACK
"""
"""The image's json, which the program that compiles imports: it does as an interpreter would."""


@pytest.fixture(scope="module")
def config() -> str:
    return f"[images]\ncompile_timeout_s = {TIMEOUT_S}\n"


def stripped(files: Files, **more: bytes | str) -> Files:
    """The layer of an interpreter without bytecode."""
    plain = {path: data for path, data in files.plain.items() if not path.endswith(".pyc")}
    return replace(files, plain={**plain, **more})


@pytest.fixture(scope="module")
def python() -> Files:
    return python_files(IMPORTS)


def progress_of(daemon: RunningDaemon, layout: Path) -> list[str]:
    """Return the progress of an import."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(layout, ".")
    answer = daemon.manage("POST", "/images?reference=oci:made", packed.getvalue())
    *before, last = map(json.loads, answer.body.splitlines())
    assert "result" in last, last
    return [each["progress"] for each in before]


def started(daemon: RunningDaemon, name: str, path: Path, python: Files, config: Mapping[str, Any] = CONFIG) -> Any:
    """What the program of an image sees, and the notes of the image's deploy."""
    write_layout(path, [python.tar(), FILES], config)
    digest, mark = upload(daemon, path), daemon.mark
    deploy(daemon, name, digest, timeout_s=60, init_timeout_s=60, memory_mb=256)
    notes = [line for line in daemon.lines[mark:] if f"deploy of {name}: bytecode" in line]
    return daemon.call(name, {}), notes


def test_an_image_without_bytecode_starts_with_all_of_it(daemon: RunningDaemon, python: Files, tmp_path: Path) -> None:
    answer, notes = started(daemon, "without", tmp_path, stripped(python))
    assert (answer["compiled"], answer["missing"], notes) == ([], [], [])
    assert {f"/{LIBRARY}/__pycache__/os.{TAG}.pyc", f"/app/__pycache__/beside.{TAG}.pyc"} <= answer["pycs"].keys()
    assert answer["file"] == f"/{SITE}/package/module.py"
    assert answer["modes"] == ["0o644"]
    names = {path.rpartition("/")[2].partition(".")[0] for path in answer["pycs"] if path.startswith("/app")}
    assert "beside" in names and not names & {"bad", "latin", "deep"}, "what does not compile is left out"


def test_the_same_image_gives_the_same_bytes(
    daemon: RunningDaemon, python: Files, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    first, _ = started(daemon, "one", tmp_path, stripped(python), {**CONFIG, "Labels": {"n": "1"}})
    again = tmp_path_factory.mktemp("again")
    second, _ = started(daemon, "two", again, stripped(python), {**CONFIG, "Labels": {"n": "2"}})
    assert len(first["pycs"]) > 50 and first["pycs"] == second["pycs"]


def test_an_image_with_bytecode_is_not_run(daemon: RunningDaemon, tmp_path: Path) -> None:
    plain = {f"{LIBRARY}/os.py": "x = 1", f"{SITE}/m.py": "x = 1", "app/x": ""}
    cached = {}
    for path, text in plain.items():
        if path.endswith(".py"):
            directory, _, name = path.rpartition("/")
            head = HEADER.pack(b"\xa7\r\r\n", 0, MTIME_S, len(text))
            cached[f"{directory}/__pycache__/{name[:-3]}.{TAG}.pyc"] = head + b"code"
    program = {f"opt/python/bin/{VERSION}": b"no program"}
    for number, (have, reasons) in enumerate(((cached, []), ({}, ["compiling bytecode: 2 sources have none"]))):
        layout = tmp_path / str(number)
        write_layout(layout, [Files({**plain, **have}, program)], {**CONFIG, "Entrypoint": [PYTHON]})
        assert [line for line in progress_of(daemon, layout) if "compiling" in line] == reasons
    write_layout(
        tmp_path / "other", [Files({"app/a.py": ""}, {"bin/x": b"\x7fELF"})], {**CONFIG, "Entrypoint": ["/bin/x"]}
    )
    assert not [line for line in progress_of(daemon, tmp_path / "other") if "compiling" in line]


@pytest.mark.parametrize(
    ("attack", "why"),
    [
        ("time.sleep(1000)", r"it took more than 30 s \(images.compile_timeout_s\)"),
        ("os._exit(3)", "bytecode was not compiled: .*exit status 3"),
        ("os.kill(os.getpid(), 11)", "bytecode was not compiled: .*segmentation fault"),
        ("x = bytearray(2 << 30); x[:] = b'x' * len(x)", "bytecode was not compiled: out of memory"),
        (
            """event = JSONDecoder().decode(event.decode())
    importlib.util.MAGIC_NUMBER = b"/etc" * 1000
    return event""",
            "bytecode was not compiled: its Python has compiled nothing",
        ),
        (
            """event = JSONDecoder().decode(event.decode())
    importlib.util.MAGIC_NUMBER = b"x" * (5 << 20) * 20
    return event""",
            "bytecode was not compiled: ",
        ),
        ("return {'cache_tag': '../../etc', 'paths': []}", "is another Python than its files say"),
        (
            """importlib.util.MAGIC_NUMBER = importlib.util.MAGIC_NUMBER + b"\\xff" * 64
    return {'cache_tag': sys.implementation.cache_tag, 'paths': ['/etc/passwd'] * 3}""",
            "bytecode was not compiled: its Python has compiled nothing",
        ),
    ],
    ids=["hangs", "exits", "crashes", "eats memory", "wrong header", "too much", "other tag", "wrong sizes"],
)
def test_a_hostile_python_costs_its_image_the_bytecode_and_nothing_else(
    daemon: RunningDaemon, python: Files, tmp_path: Path, attack: str, why: str
) -> None:
    hostile = stripped(python, **{f"{LIBRARY}/json/__init__.py": HOSTILE.replace("ATTACK", attack)})
    config = {**CONFIG, "Entrypoint": [PYTHON, "/nothing"]}
    write_layout(tmp_path, [hostile.tar(), FILES], config)
    digest, mark = upload(daemon, tmp_path), daemon.mark
    deploy(daemon, "hostile", digest)
    daemon.wait_line(f"deploy of hostile: .*{why}", since=mark)
    assert daemon.process.poll() is None
    inspected = daemon.manage("GET", f"/images/{digest}").json
    assert [note for note in inspected["notes"] if note.startswith("bytecode was not compiled")]
