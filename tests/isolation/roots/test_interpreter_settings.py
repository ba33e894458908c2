"""The table of CPython's environment variables, and what it means for a function's configuration."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from sockd.base.errors import BadFunctionConfig
from sockd.isolation.roots.interpreter import OWN_PYTHON
from sockd.isolation.roots.interpreter_settings import READ_BY_IMPORTS, SEARCH_PATH, Started, check, obeyed, search_path
from sockd.isolation.roots.python_variables import VARIABLES, Handling
from sockd.starts.zygotes.top_levels.soundness import UNOBSERVED_VARIABLES
from sockd_zygote.handlers import interpreter_settings as applied
from tests.support.foreign import installed

NAMES = {each.name for each in VARIABLES}
HOST = Started(11)
NEWEST = Started(14)
IMAGE = Started(12, {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1", "PYTHONPATH": "/a", "LANG": "C"}, is_of_image=True)


def is_refused(started: Started, **env: str) -> bool:
    try:
        check(env, started)
    except BadFunctionConfig:
        return True
    return False


def test_each_variable_is_listed_once_and_each_obeyed_one_is_applied() -> None:
    assert len(NAMES) == len(VARIABLES)
    names = {each.name for each in VARIABLES if each.handling is Handling.OBEYED}
    assert names == applied.APPLIED.keys() | {"PYTHONPATH"}
    assert names - {"PYTHONPATH", "PYTHONUNBUFFERED"} | {SEARCH_PATH} == READ_BY_IMPORTS < UNOBSERVED_VARIABLES


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_every_variable_that_an_interpreter_names_is_in_the_table(version: str) -> None:
    python = OWN_PYTHON if version == OWN_PYTHON.short else installed(version)
    words = subprocess.run([python.executable, "--help-env"], capture_output=True, text=True, check=True).stdout
    named = set(re.findall(r"^(PYTHON\w+)", words, re.MULTILINE))
    assert len(named) > 20 and named <= NAMES
    minor = python.version[1]
    assert {each.name for each in VARIABLES if each.name in named and each.since > minor} == set()


@pytest.mark.parametrize(
    "env",
    [
        {"PYTHONHASHSEED": "0"},
        {"PYTHONUTF8": "1"},
        {"PYTHONDEVMODE": "0"},
        {"PYTHONOPTIMIZE": "2"},
        {"PYTHONOPTIMIZE": "x"},
        {"PYTHONMALLOC": "malloc"},
        {"PYTHONHOME": "/x"},
        {"LD_PRELOAD": "/x.so"},
        {"LD_LIBRARY_PATH": "/var/task/lib"},
        {"PYTHONINTMAXSTRDIGITS": "639"},
        {"PYTHONINTMAXSTRDIGITS": "x"},
        {"PYTHONTRACEMALLOC": "-1"},
        {"PYTHONTRACEMALLOC": "65536"},
        {"PYTHONIOENCODING": "no-such-encoding"},
        {"PYTHONIOENCODING": "hex:strict"},
    ],
)
def test_what_would_be_ignored_or_would_not_start_is_refused(env: dict[str, str]) -> None:
    (name, value), *_ = env.items()
    with pytest.raises(BadFunctionConfig) as caught:
        check({"A": "b", **env}, HOST)
    assert caught.value.message.startswith(f"env name '{name}': ")
    assert len(value) < 4 or value not in caught.value.message, "it may be a secret"


@pytest.mark.parametrize(
    "each", [each for each in VARIABLES if each.handling is Handling.REFUSED], ids=lambda e: e.name
)
def test_a_refused_variable_says_what_to_do_and_is_free_where_nothing_reads_it(each: object) -> None:
    name, since = each.name, each.since  # type: ignore[attr-defined]
    with pytest.raises(BadFunctionConfig, match="leave it out, start another interpreter"):
        check({name: "2"}, NEWEST)
    check({name: ""}, NEWEST)
    if since > 11:
        check({name: "2"}, Started(since - 1))


def test_a_value_that_changes_nothing_is_accepted() -> None:
    same = {
        "PYTHONHASHSEED": "random",
        "PYTHONUTF8": "0",
        "PYTHONOPTIMIZE": "0",
        "PYTHONMALLOC": "pymalloc",
        "PYTHON_GIL": "1",
        "PYTHON_FROZEN_MODULES": "on",
        "PYTHONUNBUFFERED": "0",
        "PYTHONTRACEMALLOC": "0",
        "PYTHON_VERSION": "3.12",
        "PYTHONASYNCIODEBUG": "1",
        "PYTHONNOUSERSITE": "1",
    }
    check(same, NEWEST)
    assert obeyed(same, NEWEST) == {}


def test_what_an_image_was_started_with_holds_and_cannot_be_changed() -> None:
    check({"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "yes", "PYTHONPATH": "/a", "LANG": "de"}, IMAGE)
    assert obeyed({"PYTHONUNBUFFERED": "yes", "PYTHONWARNINGS": "error"}, IMAGE) == {"PYTHONWARNINGS": "error"}
    assert is_refused(IMAGE, PYTHONHASHSEED="random") and is_refused(IMAGE, PYTHONUNBUFFERED="")
    assert is_refused(IMAGE, PYTHONPATH="/b") and not is_refused(HOST, PYTHONPATH="/b")
    assert is_refused(IMAGE, PYTHONSAFEPATH="1") and not is_refused(HOST, PYTHONSAFEPATH="1")


def test_a_variable_a_function_has_is_not_refused_again_nor_applied_with_a_mistake() -> None:
    had = {"PYTHONHASHSEED": "0", "PYTHONIOENCODING": "none", "PYTHONFAULTHANDLER": "1"}
    check(had, HOST, had)
    assert obeyed(had, HOST) == {"PYTHONFAULTHANDLER": "1"}
    with pytest.raises(BadFunctionConfig, match="PYTHONHASHSEED"):
        check(had | {"PYTHONHASHSEED": "1"}, HOST, had)


def test_a_search_path_is_made_absolute_as_the_interpreter_makes_it() -> None:
    directories = search_path({"PYTHONPATH": "lib::/opt/a/../b:../c"}, "/var/task")
    program = "import sys; print(*sys.path[1:5], sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd="/usr/lib",
        env={"PYTHONPATH": "lib::/opt/a/../b:../c"},
        capture_output=True,
        text=True,
        check=True,
    )
    theirs = [each.replace("/usr/lib", "/var/task").replace("/usr/c", "/var/c") for each in done.stdout.splitlines()]
    assert directories == theirs
    assert search_path({"PYTHONPATH": ""}, "/var/task") == search_path({}, "/var/task") == []
