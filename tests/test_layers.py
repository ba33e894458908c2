"""Imports point down, as the table in ARCHITECTURE.md says, and in no circle; what runs in sandboxes stays on its diet."""

from __future__ import annotations

import ast
import functools
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.rooms import IMPORTED_AS, ROOT, Room, name_of, rooms, rooms_of
from tests.support.sources import parsed, statements

# Ours, and never to be imported from where it would not be ours to: the product knows nothing of its tests and shows.
TOP_LEVEL = ("sockd", *IMPORTED_AS.values(), "benchmarks", "demo", "tests", "vm")
IMPORT_SOCKD = ("benchmarks.s3", "benchmarks.sebs_runner", "benchmarks.instruments")
"""Programs that use parts of sockd, and run beside a worker or without one."""
INSIDE_SANDBOXES = ("zygote", "storage_lib")
# The storage library is a distribution of its own, too, whose modules are then found without the directory's name; what
# it imports of others, it imports when a function needs it; so does a sandbox that is debugged its debugger, and that of a
# WebAssembly module the runtime.
OWN_NAMES = {
    "zygote": {"sockd_zygote"},
    "storage_lib": {"sockd_storage_lib", "storage", "nosql", "sockd_initscript", "sockd_storage"},
}
LATE = {"zygote": {"debugpy", "wasmtime"}, "storage_lib": {"boto3", "botocore", "urllib3"}}
# What makes a bare interpreter slow to start and its pages many to fork (milliseconds on top of 9.9: argparse 9,
# dataclasses 14, asyncio 51).
OFF_THE_DIET = ("argparse", "asyncio", "dataclasses", "inspect", "logging", "subprocess", "typing", "unittest", "uuid")
NEEDED = {
    "forks": [
        *(
            "children",
            "clocks",
            "copied_variables",
            "kept",
            "listed_variables",
            "module_kinds",
            "observer",
            "parked",
            "parked_hub",
            "randomness",
            "running_threads",
        ),
        *("surroundings", "taken_names", "variable_reads"),
    ],
    "handlers": [
        *("app_kinds", "apps", "asgi", "botocore_clients", "botocore_data", "botocore_events", "botocore_tls"),
        *("debugging", "init_reads"),
        *("interpreter_settings", "package_path", "snapshot_hooks", "snapshot_restore_py", "wsgi"),
    ],
    "handlers.programs": "http_events image_program own_listener runtime_api service web_server".split(),
    "handlers.wasm": "deadline guests host imports runtime".split(),
    "messages": "log_layout rare_answers".split(),
    "top_levels": [
        *(
            "building",
            "certainty",
            "change_names",
            "checks",
            "decisions",
            "fingerprint",
            "function_caches",
            "heap",
            "interpreter",
        ),
        *("own_calls", "own_variables", "passed_on", "platform_caches", "process", "registrations"),
        *("source_texts", "state", "top_level", "trial"),
    ],
}
FOR_THOSE_THAT_NEED_THEM = {"sockd_zygote.program_imports", "sockd_zygote.template"} | {
    f"sockd_zygote.{room}.{name}" for room, names in NEEDED.items() for name in names
}
"""Imported in the sandbox of a function that is a web app, logs with `logging`, uses botocore, answers with a Decimal or with
keys of bytes, is WebAssembly or a service, has variables of the interpreter, a snapshot or a debugger; in Zygotes with packages;
in templates; in sandboxes of a verification, a build or an image."""
MODULES_LIMIT = 95
"""A bare interpreter has 23; those that own_traceback keeps for itself are not counted. Counted, not timed: what this costs
is `sockd bench cold_start`'s affair."""
IN_C_FROM_3_14 = {"_contextvars", "_opcode", "_tokenize", "_types"}
"""Parts of the interpreter's own binary that `types` and `traceback` import in CPython 3.14: `types` was Python alone, and what
is in C stays in sys.modules (`own_traceback`). The modules that sockd can choose are as many there as elsewhere."""


def product_files() -> list[Path]:
    return sorted(file for top in ("sockd", *INSIDE_SANDBOXES, "initscripts") for file in (ROOT / top).rglob("*.py"))


def room_of(module: str) -> Room:
    found = rooms_of(module)
    assert len(found) == 1, f"{module} is in {len(found)} rows of the table in ARCHITECTURE.md"
    return found[0]


@functools.cache
def imports_of(file: Path) -> tuple[str, ...]:
    """The modules that a file imports, wherever it does, in full; of ours, submodules instead of names from packages."""
    return tuple(_imports_of(file))


def _imports_of(file: Path) -> Iterator[str]:
    for node in statements(parsed(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                assert "storage_lib" in file.parts, f"{file}:{node.lineno}: relative import"
                parts = name_of(file.relative_to(ROOT)).split(".")
                package = parts[: len(parts) - node.level + (file.name == "__init__.py")]
                module = ".".join([*package, *filter(None, [module])])
            assert module
            for alias in node.names:
                submodule = f"{module}.{alias.name}"
                yield submodule if is_module(submodule) else module


def is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def is_ours(module: str) -> bool:
    return module.partition(".")[0] in TOP_LEVEL


def test_imports_point_down() -> None:
    wrong = []
    for file in product_files():
        module = name_of(file.relative_to(ROOT))
        room = room_of(module)
        for imported in filter(is_ours, imports_of(file)):
            other = room_of(imported)
            if other != room and other.level >= room.level:
                wrong.append(f"{module} (L{room.level}) imports {imported} (L{other.level})")
    assert wrong == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Nor for their types alone: who reads one module of a circle has to read them all."""
    graph = {name_of(file.relative_to(ROOT)): set(modules_imported_by(file)) for file in all_files()}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def all_files() -> list[Path]:
    clients = (file for top in ("benchmarks", "demo") for file in (ROOT / top).rglob("*.py"))
    return [*product_files(), *clients]


def modules_imported_by(file: Path) -> Iterator[str]:
    """Modules of ours, those of the storage library by their names in the repository."""
    for imported in imports_of(file):
        in_storage_lib = f"sockd_storage_lib.{imported}"
        yield in_storage_lib if is_module(in_storage_lib) else imported


def test_folders_of_an_area_import_each_other_in_no_circle() -> None:
    """What is directly in an area's folder may use its folders and be used by them: it is the area's own."""
    graph: dict[str, set[str]] = {}
    for file in product_files():
        folder = subfolder(name_of(file.relative_to(ROOT)))
        others = {subfolder(imported) for imported in filter(is_ours, imports_of(file))}
        graph.setdefault(folder, set()).update(other for other in others if other and other != folder)
    graph.pop("")
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_nested_folders_import_each_other_in_no_circle() -> None:
    """The same holds in each folder of an area for the folders in it."""
    graph: dict[str, set[str]] = {}
    for file in product_files():
        module = name_of(file.relative_to(ROOT))
        for imported in filter(is_ours, imports_of(file)):
            if parted := parting_folders(module, imported):
                graph.setdefault(parted[0], set()).add(parted[1])
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_the_apis_import_none_of_each_other() -> None:
    """They are side by side, over `sockd.http.worker`; what several need is outside of all, and `front` has them all."""
    apis = ("run", "management", "aws", "urls", "page")
    wrong = [
        f"{file.relative_to(ROOT)} imports {imported}"
        for api in apis
        for file in (ROOT / "sockd/http" / api).rglob("*.py")
        for imported in imports_of(file)
        if imported.startswith("sockd.http.front")
        or any(imported.startswith(f"sockd.http.{other}.") for other in apis if other != api)
    ]
    assert wrong == []


def test_observations_begin_no_request() -> None:
    """They receive outcomes; `sockd/worker` begins requests."""
    imported = {name for file in (ROOT / "sockd/observe").rglob("*.py") for name in imports_of(file)}
    assert not imported & {
        "sockd.functions.serving.serving",
        "sockd.functions.serving.function",
        "sockd.functions.functions",
    }


def subfolder(module: str) -> str:
    """`sockd.isolation.roots` of `sockd.isolation.roots.base`; empty for what is in no folder of an area."""
    parts = module.split(".")[:3]
    return ".".join(parts) if len(parts) == 3 and (ROOT / "/".join(parts)).is_dir() else ""


def parting_folders(module: str, other: str) -> tuple[str, str] | None:
    """Two folders side by side in a folder of an area, where the paths to two modules part; None: they part elsewhere."""
    parts, others = module.split("."), other.split(".")
    same = next((i for i, (one, two) in enumerate(zip(parts, others, strict=False)) if one != two), 0)
    one, two = ".".join(parts[: same + 1]), ".".join(others[: same + 1])
    are_folders = all((ROOT / each.replace(".", "/")).is_dir() for each in (one, two))
    return (one, two) if same > 2 and are_folders else None


@pytest.mark.parametrize("top", INSIDE_SANDBOXES)
def test_what_runs_in_sandboxes_imports_the_standard_library_alone(top: str) -> None:
    for file in (ROOT / top).rglob("*.py"):
        for imported in imports_of(file):
            first = imported.partition(".")[0]
            known = OWN_NAMES[top] | LATE[top] | sys.stdlib_module_names
            assert first in known, f"{file.relative_to(ROOT)} imports {imported}"


def test_benchmarks_and_the_demo_see_no_more_than_a_client_does() -> None:
    for top in ("benchmarks", "demo"):
        for file in (ROOT / top).rglob("*.py"):
            if not name_of(file.relative_to(ROOT)).startswith(IMPORT_SOCKD):
                for imported in filter(is_ours, imports_of(file)):
                    assert imported.startswith(("benchmarks", "demo")), f"{file.relative_to(ROOT)} imports {imported}"


def test_no_module_has_a_package_of_its_name() -> None:
    """The package would hide the module: `python -m benchmarks.sebs` would run a package."""
    tops = ("sockd", *IMPORTED_AS, "benchmarks", "demo", "docs", "tests", "vm")
    files = (file for top in tops for file in (ROOT / top).rglob("*.py"))
    assert [str(file.relative_to(ROOT)) for file in files if (file.with_suffix("") / "__init__.py").exists()] == []


def test_every_row_of_the_table_names_what_exists() -> None:
    table = rooms()
    assert [room.level for room in table] == sorted((room.level for room in table), reverse=True)
    for room in table:
        for part in room.parts:
            assert is_module(part), part


def test_the_zygote_keeps_its_diet() -> None:
    names = {name_of(file.relative_to(ROOT)) for file in (ROOT / "zygote").rglob("[!_]*.py")} - FOR_THOSE_THAT_NEED_THEM
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {', '.join(names)}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    loaded = run.stdout.split()
    assert not (set(OFF_THE_DIET) | FOR_THOSE_THAT_NEED_THEM) & set(loaded)
    assert len(set(loaded) - IN_C_FROM_3_14) <= MODULES_LIMIT, loaded
