"""Environment variables that own code changes: they end the sharing where an import reads them, and not elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from sockd_zygote import _native
from sockd_zygote.top_levels.own_variables import PIECE_BYTES, may_walk_environ
from tests.zygote.top_levels.starts import Files, Recording, Starts

LISTS = "import os\nTAKEN = [name for name in os.environ if name.startswith({0!r})]\n"
READERS: dict[str, str] = {
    "by its name": "import os\nos.environ.get('OWN_MODE')\n",
    "by os.getenv": "import os\nos.getenv('OWN_MODE')\n",
    "as bytes": "import os\nos.environb.get(b'OWN_MODE')\n",
    "in C": "import ctypes\nctypes.CDLL(None).getenv(b'OWN_MODE')\n",
    "by a prefix": LISTS.format("OWN_"),
    "with all others": "import os\nCOPY = dict(os.environ)\n",
    "with all others, of posix": "import posix\nCOPY = posix.environ.copy()\n",
    "by asking whether it is there": "import os\nTHERE = 'OWN_MODE' in os.environ\n",
    "and sets it": "import os\nos.environ['OWN_MODE'] = 'other'\n",
    "and removes it": "import os\nos.environ.pop('OWN_MODE', None)\n",
    "in a child": "import os\nos.system('true')\n",
    "in a part of it": "import part_of_it\n",
}
OTHERS: dict[str, str] = {
    "no variable": "VALUE = 1\n",
    "another variable": "import os\nos.environ.get('OTHER')\nos.environ.setdefault('THIRD', '3')\n",
    "another prefix": LISTS.format("OTHER_"),
    "another variable in C": "import ctypes\nctypes.CDLL(None).getenv(b'OTHER')\n",
}
SETS = "import os\nos.environ['OWN_MODE'] = 'own'\n"
READ = "os.environ['OWN_MODE']"


@pytest.fixture
def starts(tmp_path: Path) -> Starts:
    made = Starts(tmp_path)
    made.install("part", {"part_of_it.py": READERS["by its name"]})
    made.install("other", {"other.py": "VALUE = 1\n"})
    return made


def record(starts: Starts, code: str, files: Files | None = None) -> Recording:
    """Record a top level with the C extension preloaded, as in a sandbox."""
    return starts.record(code, files, LD_PRELOAD=str(_native.__file__), LD_BIND_NOW="1")


@pytest.mark.parametrize("how", READERS)
def test_a_variable_that_an_import_reads_ends_the_sharing(starts: Starts, how: str) -> None:
    starts.install("reader", {"reader.py": READERS[how]})
    recording = record(starts, f"import other\n{SETS}import reader\n")
    assert recording.failure == ""
    assert (recording.step("other").before, recording.step("reader").before) == ("", READ)


@pytest.mark.parametrize("what", OTHERS)
def test_an_import_that_reads_something_else_is_shared(starts: Starts, what: str) -> None:
    starts.install("reader", {"reader.py": OTHERS[what]})
    recording = record(starts, f"import other\n{SETS}import reader\n")
    assert recording.failure == ""
    assert [(step.name, step.before) for step in recording.steps if step.outer < 0 and step.key] == [
        ("other", ""),
        ("reader", ""),
    ]
    assert (recording.step("other").variables, recording.step("reader").variables) == ((), ("OWN_MODE",))


def test_what_the_functions_code_reads_is_no_read_of_an_import(starts: Starts) -> None:
    files = {
        "settings.py": "import os\nos.environ.setdefault('OWN_MODE', 'own')\nMODE = os.environ['OWN_MODE']\nimport other\n"
    }
    recording = record(starts, "import os, settings\nCOPY = dict(os.environ)\n", files)
    assert recording.step("other").before == ""
    assert recording.step("other").variables == ("OWN_MODE",)


def test_a_variable_that_an_earlier_import_has_read_ends_the_sharing(starts: Starts) -> None:
    recording = record(starts, f"import part_of_it\n{SETS}import other\n")
    assert (recording.step("part_of_it").before, recording.step("other").before) == ("", READ)


@pytest.mark.parametrize("name", ["TZ", "LC_ALL", "LANGUAGE", "PYTHONWARNINGS"])
def test_a_variable_that_is_read_without_an_observation_ends_the_sharing(starts: Starts, name: str) -> None:
    recording = record(starts, f"import os\nos.environ[{name!r}] = 'C'\nimport other\n")
    assert recording.step("other").before == f"os.environ[{name!r}]"


@pytest.mark.parametrize(
    "code", ["import os\nos.environ = {**os.environ, 'OWN_MODE': '1'}\n", "import os\nos.putenv('A', '1')\n"]
)
def test_a_change_that_no_read_would_show_ends_the_sharing(starts: Starts, code: str) -> None:
    assert record(starts, f"{code}import other\n").step("other").before


def test_every_change_ends_the_sharing_where_reads_in_c_are_not_seen(starts: Starts) -> None:
    assert starts.record(f"{SETS}import other\n").step("other").before == READ


def test_an_import_of_a_submodule_is_observed_with_its_package(starts: Starts) -> None:
    starts.install("whole", {"whole/__init__.py": "VALUE = 1\n", "whole/part.py": READERS["by its name"]})
    recording = record(starts, f"{SETS}import whole.part\nimport other\n")
    assert [(step.name, step.before) for step in recording.steps if step.key] == [
        ("whole", ""),
        ("whole.part", READ),
        ("other", READ),
    ]


def test_the_environment_is_as_before_afterwards(starts: Starts) -> None:
    starts.install("reader", {"reader.py": READERS["by its name"]})
    code = (
        "import os, posix, other\nimport reader\nPLAIN = [type(os.environ), type(os.environb), type(posix.environ)]\n"
    )
    code += "assert PLAIN == [os._Environ, os._Environ, dict] and '__getattr__' not in vars(posix)\n"
    assert record(starts, code).failure == ""


@pytest.mark.parametrize("place", [0, PIECE_BYTES - 5, 2 * PIECE_BYTES + 17])
def test_a_library_with_the_symbol_of_all_variables_is_found(tmp_path: Path, place: int) -> None:
    library = tmp_path / "some.so"
    library.write_bytes(bytes([7]) * place + b"\0environ\0" + bytes([7]) * 100)
    assert may_walk_environ(str(library))
    library.write_bytes(bytes([7]) * place + b"\0environment\0getenv\0")
    assert not may_walk_environ(str(library))
    assert may_walk_environ(str(tmp_path / "absent.so"))
