"""`storage = "sockd"`: the function gets our storage library under every name that it may use, or nothing at all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sockd_zygote.handlers import storage_finder

REPOSITORY = Path(__file__).parents[3]

PROGRAM = f"""
import json, sys
sys.path.insert(0, {str(REPOSITORY)!r})
from sockd_zygote.handlers import storage_finder
sys.path[0] = sys.argv[1]
storage_finder.StorageFinder(sys.argv[2]).install()
print(json.dumps(eval(sys.argv[3])))
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """Something in the storage library's place that counts how often it is imported."""
    library = tmp_path / "library"
    (library / "sockd_storage").mkdir(parents=True)
    (library / "storage.py").write_text("import sockd_storage\nOURS = sockd_storage.COUNT.append(1) or 'storage'\n")
    (library / "nosql.py").write_text("OURS = 'nosql'\n")
    (library / "sockd_storage" / "__init__.py").write_text("from .part import COUNT\n")
    (library / "sockd_storage" / "part.py").write_text("COUNT = []\n")
    return library


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package as SeBS makes them: a namespace package with its own storage, which must not be imported."""
    function = tmp_path / "code" / "function"
    function.mkdir(parents=True)
    (function / "function.py").write_text("from . import storage, nosql, other\n")
    (function / "other.py").write_text("")
    for name in ("function/storage.py", "function/nosql.py", "storage.py", "nosql.py", "sockd_storage.py"):
        (tmp_path / "code" / name).write_text("raise AssertionError('the package has its own')\n")
    return tmp_path / "code"


def evaluate(expression: str, package: Path, library: Path) -> Any:
    command = [sys.executable, "-I", "-S", "-c", PROGRAM, str(package), str(library), expression]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


@pytest.mark.parametrize("first", ["storage", "function.function", "function.storage"])
def test_all_names_are_one_module(first: str, package: Path, library: Path) -> None:
    expression = (
        f"[__import__({first!r}) and None, __import__('storage').OURS, __import__('function.storage').storage.OURS,"
        " sys.modules['storage'] is sys.modules['function.storage'], len(sys.modules['sockd_storage'].COUNT)]"
    )
    assert evaluate(expression, package, library) == [None, "storage", "storage", True, 1]


def test_nosql_too_and_what_is_not_ours_is_the_packages_own(package: Path, library: Path) -> None:
    expression = "[__import__('function.function').nosql.OURS, sys.modules['function.other'].__file__]"
    assert evaluate(expression, package, library) == ["nosql", str(package / "function" / "other.py")]


def test_a_module_that_a_zygote_imported_is_not_taken_for_ours(package: Path, library: Path) -> None:
    expression = (
        "[sys.modules.update({'storage': sys}), storage_finder.StorageFinder(sys.argv[2]).install(),"
        " __import__('storage').OURS][-1]"
    )
    assert evaluate(expression, package, library) == "storage"


def test_nothing_is_imported_until_it_is_asked_for(package: Path, library: Path) -> None:
    names = {*storage_finder.MODULES, *storage_finder.PACKAGES, *storage_finder.ALIASES}
    assert evaluate("[__import__('function.other') and None, *sys.modules]", package, library)[0] is None
    assert not names & set(evaluate("list(sys.modules)", package, library))


def test_the_library_is_where_the_finder_looks() -> None:
    assert Path(storage_finder.DIRECTORY).resolve() == REPOSITORY / "storage_lib"


PREPARED = """
storage_finder.prepare(lambda library: storage_rehearsal.rehearse(library, times=2))
hidden = sorted(name for name in sys.modules if storage_finder.is_ours(name))
storage_finder.StorageFinder(storage_finder.DIRECTORY).install()
"""


def prepared(expression: str, package: Path) -> Any:
    """What an expression is in a child of a Zygote that has the library ready."""
    program = PROGRAM.replace(
        "import storage_finder", "import storage_finder\nfrom sockd_zygote import storage_rehearsal"
    )
    program = program.replace("storage_finder.StorageFinder(sys.argv[2]).install()", PREPARED)
    command = [sys.executable, "-I", "-S", "-c", program, str(package), "", expression]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def test_the_library_is_ready_and_out_of_the_way_of_who_does_not_want_it(package: Path) -> None:
    hidden, here, imported = prepared(
        "[hidden, [name for name in sys.modules if storage_finder.is_ours(name)],"
        " [__import__('function.storage').storage.__file__, __import__('nosql').__file__]]",
        package,
    )
    assert hidden == []
    assert {"storage", "sockd_storage.reads", "sockd_initscript.app_link", "sockd_initscript.region"} <= set(here)
    assert imported == [f"{storage_finder.DIRECTORY}/{name}.py" for name in ("storage", "nosql")]


def test_of_what_was_rehearsed_nothing_is_left(package: Path) -> None:
    link, observed, from_network, fds = prepared(
        "[sys.modules['sockd_initscript'].link(), sys.modules['sockd_zygote.handlers.egress']._used,"
        " 'sockd_storage.network' in sys.modules, len(__import__('os').listdir('/proc/self/fd'))]",
        package,
    )
    assert (link, observed) == (None, None)
    assert not from_network  # what was rehearsed is a read from shared memory
    assert fds == 4  # the three that a process has, and the one that looks


def test_without_its_modules_it_hides_none_of_the_function(tmp_path: Path) -> None:
    (tmp_path / "storage.py").write_text("MINE = 1\n")
    program = (
        "import sys; sys.path[:0] = [sys.argv[1], sys.argv[2]]\n"
        "from sockd_zygote.handlers import storage_finder\n"
        "storage_finder.prepare()\n"
        "storage_finder.StorageFinder(storage_finder.DIRECTORY, has_modules=False).install()\n"
        "import storage, sockd_storage.clients\n"
        "try:\n    import nosql\nexcept ModuleNotFoundError:\n    print(storage.MINE, sockd_storage.clients.GET)\n"
    )
    command = [sys.executable, "-I", "-S", "-c", program, str(tmp_path), str(Path(__file__).parents[3])]
    run = subprocess.run(command, capture_output=True, text=True)
    assert (run.stdout, run.stderr) == ("1 s3.GetObject\n", "")
