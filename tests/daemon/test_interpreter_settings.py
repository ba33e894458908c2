"""Variables that CPython reads when it starts (PYTHON...), obeyed in first starts and in learned ones."""

from __future__ import annotations

from typing import Any

import pytest

from sockd.isolation.roots.python_variables import VARIABLES, Handling
from tests.daemon.running import RunningDaemon
from tests.daemon.starts.test_zygote_tree_of_a_daemon import LOUD, SLOW
from tests.daemon.test_python_versions import OTHERS
from tests.support.foreign import installed
from tests.support.servers.package_index import PackageIndex, wheel

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]

NOTICING = (
    SLOW
    + LOUD
    + """
import faulthandler, sys, tracemalloc, warnings
def settings():
    return {
        "warnoptions": sys.warnoptions,
        "filters": [[action, category.__name__, line] for action, _, category, _, line in warnings.filters],
        "faults": faulthandler.is_enabled(),
        "frames": tracemalloc.is_tracing() and tracemalloc.get_traceback_limit(),
        "digits": sys.get_int_max_str_digits(),
        "bytecode": sys.dont_write_bytecode,
        "prefix": sys.pycache_prefix,
    }
AT_IMPORT = settings()
"""
)
CODE = """
import json, subprocess, sys
import noticing
def state():
    return {
        "now": noticing.settings(),
        "at import": noticing.AT_IMPORT,
        "encodings": [[each.encoding, each.errors] for each in (sys.stdin, sys.stdout, sys.stderr)],
        "buffers": [[type(each.buffer).__name__, each.write_through, each.name] for each in (sys.stdout, sys.stderr)],
    }
def f(event):
    code = "import json, f; print(json.dumps(f.state()))"
    child = subprocess.run([sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    return {"own": state(), "child": json.loads(child.stdout.splitlines()[-1])}
"""
OBEYED = {
    "PYTHONWARNINGS": ("error::UserWarning,,ignore::DeprecationWarning,default", ("warnoptions", "filters")),
    "PYTHONFAULTHANDLER": ("0", ("faults",)),
    "PYTHONTRACEMALLOC": ("5", ("frames",)),
    "PYTHONINTMAXSTRDIGITS": ("700", ("digits",)),
    "PYTHONDONTWRITEBYTECODE": ("1", ("bytecode",)),
    "PYTHONPYCACHEPREFIX": ("/tmp/bytecode", ("prefix",)),
    "PYTHONIOENCODING": ("latin-1:replace", ()),
    "PYTHONUNBUFFERED": ("x", ()),
}
"""A value of each variable, and what of `settings` it changes."""
FRESH: dict[str, Any] = {"reuse_sandbox": False, "timeout_s": 20, "init_timeout_s": 20}


@pytest.fixture(scope="module", autouse=True)
def packages(index: PackageIndex) -> None:
    index.add(wheel("noticing", "1.0", {"noticing/__init__.py": NOTICING}))


@pytest.fixture(scope="module")
def learned(daemon: RunningDaemon) -> dict[str, Any]:
    """What a function without such variables answers, when a Zygote has imported its package."""
    files = {"f.py": CODE, "requirements.txt": "noticing\n"}
    daemon.deploy("plain", files, **FRESH)
    first = daemon.call("plain")
    assert daemon.call_learned("plain") == first
    return dict(first["own"])


def test_each_obeyed_variable_is_tested_here() -> None:
    names = {each.name for each in VARIABLES if each.handling is Handling.OBEYED}
    assert names == {*OBEYED, "PYTHONPATH"}


@pytest.mark.parametrize("name", OBEYED)
def test_a_variable_is_obeyed_as_by_an_interpreter_that_starts_with_it(
    daemon: RunningDaemon, learned: dict[str, Any], name: str
) -> None:
    value, keys = OBEYED[name]
    function = name.lower()
    daemon.deploy(function, {"f.py": CODE, "requirements.txt": "noticing\n"}, env={name: value}, **FRESH)
    first = daemon.run(function)
    daemon.wait_verified()
    second = daemon.run(function)
    assert first.status == second.status == 200, (first, second)
    assert first.json == second.json
    own, child = second.json["own"], second.json["child"]
    for key in keys:
        assert own["now"][key] == child["now"][key] != learned["now"][key]
        assert own["at import"][key] == child["at import"][key], "its packages were imported with it"
    if name == "PYTHONIOENCODING":
        assert own["encodings"] == child["encodings"] != learned["encodings"]
    if name == "PYTHONUNBUFFERED":
        assert own["buffers"] == child["buffers"] != learned["buffers"]
    is_learned = "importing noticing" not in daemon.log_of(function, second)
    assert is_learned is (name == "PYTHONUNBUFFERED"), "only that does not reach imports"


def test_unbuffered_output_is_not_lost_with_the_process(daemon: RunningDaemon) -> None:
    code = "import os, sys\ndef f(event):\n    sys.stdout.write('no end of line')\n    os._exit(3)\n"
    logs = {}
    for name, env in (("buffered", {}), ("unbuffered", {"PYTHONUNBUFFERED": "1"})):
        daemon.deploy(name, code, env=env)
        logs[name] = daemon.log_of(name, daemon.run(name))
    assert "no end of line" in logs["unbuffered"] and "no end of line" not in logs["buffered"]


def test_a_functions_own_search_path_comes_before_its_packages(daemon: RunningDaemon, learned: dict[str, Any]) -> None:
    code = "import sys, noticing, beside\ndef f(event): return [noticing.__file__, beside.__file__, sys.path]\n"
    files = {"f.py": code, "lib/noticing.py": "", "lib/beside.py": "", "requirements.txt": "noticing\n"}
    daemon.deploy("own-path", files, env={"PYTHONPATH": "lib:/opt/none/../other"}, **FRESH)
    first = daemon.call("own-path")
    daemon.wait_verified()
    assert first[:2] == ["/var/task/lib/noticing.py", "/var/task/lib/beside.py"]
    assert first[2][:3] == ["/var/task", "/var/task/lib", "/opt/other"] and first[2][3].startswith("/packages/")
    assert daemon.call("own-path") == first


def test_other_pythons_of_the_host_obey_them_too(daemon: RunningDaemon) -> None:
    code = "import sys, warnings\ndef f(event): return [sys.version_info[1], sys.warnoptions, warnings.filters[0][0]]\n"
    for version in OTHERS:
        installed(version)
        name = f"other-{version[2:]}"
        daemon.deploy(name, code, python=version, env={"PYTHONWARNINGS": "error"}, **FRESH)
        assert daemon.call(name) == [int(version[2:]), ["error"], "error"]
