"""Where a module is from: a distribution, the standard library, the function's code or sockd's runtime."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import subprocess
import sys
import types
import xml
from pathlib import Path
from typing import Any

import pytest

from sockd_zygote.forks.module_kinds import (
    OWN,
    RUNTIME,
    STANDARD,
    Kinds,
    instance_dict,
    is_a,
    namespace,
)

REPOSITORY = Path(__file__).resolve().parents[3]
STORED = "/packages/p-1.0-aaaaaaaaaaaa/"


def module(name: str, file: str | None = None, **names: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    vars(made).update(names)
    if file is not None:
        made.__file__ = file
    return made


KEYS: dict[str, tuple[str, Any, str]] = {
    "a module of a distribution": ("p", module("p", f"{STORED}p/__init__.py"), "p-1.0-aaaaaaaaaaaa"),
    "an extension of a distribution": ("p.c", module("p.c", f"{STORED}p/c.so"), "p-1.0-aaaaaaaaaaaa"),
    "an entry of the store that is no distribution": ("p", module("p", "/packages/p.py"), "p.py"),
    "a namespace package of a distribution": ("p", module("p", __path__=[f"{STORED}p"]), "p-1.0-aaaaaaaaaaaa"),
    "a standard module": ("json", json, STANDARD),
    "a standard package's part": ("xml", xml, STANDARD),
    "a built-in module": ("sys", sys, STANDARD),
    "a frozen module": ("zipimport", sys.modules["zipimport"], STANDARD),
    "an installed package of the host": ("pytest", pytest, OWN),
    "a module of the code": ("f", module("f", "/var/task/f.py"), OWN),
    "a module of the code below a prefix's name": ("f", module("f", f"{sys.prefix}-2/lib/python3/f.py"), OWN),
    "a module made by hand": ("made", module("made"), OWN),
    "a module with a file that is none": ("odd", module("odd", __file__=7), OWN),
    "an object in the place of a module": ("gone", object(), OWN),
    "nothing in the place of a module": ("gone", None, OWN),
    "the runtime": ("sockd_zygote.protocol", module("sockd_zygote.protocol", f"{STORED}p.py"), RUNTIME),
    "the program": ("__main__", module("__main__", "/var/task/f.py"), RUNTIME),
}


@pytest.mark.parametrize("which", KEYS)
def test_the_key_of_a_module(which: str) -> None:
    name, each, key = KEYS[which]
    assert Kinds().key_of(name, each) == key


def test_a_module_that_a_package_makes_is_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kinds_six", module("kinds_six", f"{STORED}kinds_six.py"))
    monkeypatch.setitem(sys.modules, "kinds_own", module("kinds_own", "/var/task/kinds_own.py"))
    assert Kinds().key_of("kinds_six.moves", module("kinds_six.moves")) == "p-1.0-aaaaaaaaaaaa"
    assert Kinds().key_of("kinds_six.moves.urllib.parse", module("x")) == "p-1.0-aaaaaaaaaaaa"
    assert Kinds().key_of("kinds_own.made", module("kinds_own.made")) == OWN
    assert Kinds().key_of("kinds_absent.made", module("kinds_absent.made")) == OWN


def test_directories_of_an_image_have_a_key() -> None:
    kinds = Kinds([("/usr/local/lib/python3.12/site-packages/", "image:1234"), ("/opt/", "image:1234")])
    assert kinds.key_of("p", module("p", "/usr/local/lib/python3.12/site-packages/p.py")) == "image:1234"
    assert kinds.key_of("p", module("p", __path__=["/opt/p"])) == "image:1234"
    assert kinds.key_of("p", module("p", "/optional/p.py")) == OWN


def test_a_real_namespace_package_has_the_key_of_its_first_directory(directory: Path) -> None:
    for part in ("one", "two"):
        (directory / part / "kinds_space").mkdir(parents=True)
    sys.path[:0] = [str(directory / "one"), str(directory / "two")]
    import kinds_space  # type: ignore[import-not-found]

    try:
        assert Kinds([(f"{directory}/one/", "one")]).key_of("kinds_space", kinds_space) == "one"
        assert Kinds([(f"{directory}/two/", "two")]).key_of("kinds_space", kinds_space) == OWN
    finally:
        del sys.modules["kinds_space"]


def test_a_lazy_module_stays_lazy() -> None:
    class Lazy(types.ModuleType):
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError("it was loaded")

    lazy = Lazy("lazy")
    namespace(lazy)["__file__"] = f"{STORED}lazy.py"
    assert namespace(lazy)["__name__"] == "lazy"
    assert Kinds().key_of("lazy", lazy) == "p-1.0-aaaaaaaaaaaa"


def test_a_module_of_importlibs_lazy_loader_is_not_loaded(directory: Path) -> None:
    (directory / "kinds_late.py").write_text("raise SystemExit\n")
    spec = importlib.util.find_spec("kinds_late")
    assert spec is not None and spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    late = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(late)
    assert Kinds([(f"{directory}/", "d")]).key_of("kinds_late", late) == "d"


def test_no_code_of_an_object_is_run() -> None:
    class Hostile:
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(f"it was asked for {name}")

        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            raise AssertionError("its property was asked")

    assert not is_a(Hostile(), dict) and is_a(Hostile(), Hostile)
    assert instance_dict(Hostile()) is None
    assert Kinds().key_of("hostile", Hostile()) == OWN


def test_attributes_of_an_object_are_its_own_dict() -> None:
    class Plain:
        x = 1

    class Slots:
        __slots__ = ("y",)

    plain = Plain()
    plain.x = 2
    assert instance_dict(plain) == {"x": 2}
    assert instance_dict(Slots()) is None and instance_dict(1) is None


def test_a_dict_that_cannot_be_had_is_none() -> None:
    """As of a proxy in C, whose __dict__ is that of an object which has none."""
    foreign = type("Foreign", (), {"__slots__": (), "__dict__": vars(type("Other", (), {}))["__dict__"]})
    assert instance_dict(foreign()) is None


def test_the_key_is_reported_without_an_import() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(REPOSITORY)!r}); before = set(sys.modules)\n"
        "from sockd_zygote.forks.module_kinds import Kinds\n"
        "kinds = Kinds()\n"
        "[kinds.key_of(name, module) for name, module in list(sys.modules.items())]\n"
        "print({name for name in set(sys.modules) - before if not name.startswith(('sockd_zygote', '__future__'))})\n"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_builtin_has_an_origin_that_is_no_path() -> None:
    spec = importlib.machinery.BuiltinImporter.find_spec("errno")
    assert spec is not None
    assert Kinds().key_of("errno", importlib.util.module_from_spec(spec)) == STANDARD
