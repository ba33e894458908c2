"""What a Zygote has imported for one function, and must not serve to another whose imports would have gone another way.

Each package here keeps what it saw while it was imported. A function that has learned packages in common with another, and
something besides that those packages look for, must answer as in a start of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.faults.packages import SLOW
from tests.support.cases import Happened, case
from tests.support.private_worker import PrivateWorker
from tests.support.servers.package_index import wheel

pytestmark = pytest.mark.root


def module(name: str, code: str, **files: str) -> tuple[str, bytes]:
    """A wheel with one module that is worth a Zygote. Args: files: more modules, with __ for / in their names."""
    more = {f"{path.replace('__', '/')}.py": text for path, text in files.items()}
    return wheel(name, "1.0", {f"{name.replace('-', '_')}.py": SLOW + code, **more})


def plain(name: str, files: Mapping[str, str]) -> tuple[str, bytes]:
    return wheel(name, "1.0", files)


TRY = "try:\n    import {0}\n    SAW = '{0} is there'\nexcept ImportError:\n    SAW = None\n"


@dataclass(frozen=True)
class Difference:
    """A package, what a second function has besides, and what the package then sees."""

    package: tuple[str, bytes]
    expected: Any
    reason: str
    """A part of why the Zygote is passed over."""
    besides: tuple[tuple[str, bytes], ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


DIFFERENCES = {
    "an optional module that is imported": Difference(
        module("p-try", TRY.format("opt_try")), "opt_try is there", "looked for opt_try", (module("opt-try", ""),)
    ),
    "an optional module that is looked for": Difference(
        module("p-find", "import importlib.util\nSAW = importlib.util.find_spec('opt_find') is not None\n"),
        True,
        "looked for opt_find",
        (module("opt-find", ""),),
    ),
    "an optional part of a namespace package": Difference(
        module("p-part", TRY.format("p_space.opt"), p_space__own="OWN = 1\n"),
        "p_space.opt is there",
        "looked for p_space.opt",
        (plain("opt-part", {"p_space/opt.py": ""}),),
    ),
    "the function's own module of that name": Difference(
        module("p-own", TRY.format("opt_own")), "opt_own is there", "looked for opt_own", files={"opt_own.py": ""}
    ),
    "the function's own module in the place of the standard library's": Difference(
        module("p-shadow", "import colorsys\nSAW = getattr(colorsys, 'OWN', None)\n"),
        "the function's",
        "found colorsys",
        files={"colorsys.py": 'OWN = "the function\'s"\n'},
    ),
    "a distribution's version": Difference(
        module(
            "p-version",
            "import importlib.metadata as m\ntry:\n    SAW = m.version('Opt_Version')\n"
            "except m.PackageNotFoundError:\n    SAW = None\n",
        ),
        "1.0",
        "asked for the distribution opt-version",
        (module("opt-version", ""),),
    ),
    "entry points": Difference(
        module(
            "p-plugins",
            "import importlib.metadata as m\nSAW = [e.name for e in m.entry_points(group='p.plugins')]\n",
        ),
        ["plug"],
        "entry points p.plugins",
        (
            plain(
                "opt-plugin",
                {"opt_plugin.py": "", "opt_plugin-1.0.dist-info/entry_points.txt": "[p.plugins]\nplug = opt_plugin\n"},
            ),
        ),
    ),
    "every distribution": Difference(
        module(
            "p-every",
            "import importlib.metadata as m\nSAW = sorted(d.metadata['Name'] for d in m.distributions())\n",
        ),
        ["opt-every", "p-every"],
        "asked for all distributions",
        (module("opt-every", ""),),
    ),
    "plugins by their names": Difference(
        module(
            "p-names",
            "import pkgutil\nSAW = [m.name for m in pkgutil.iter_modules() if m.name.startswith('opt_names')]\n",
        ),
        ["opt_names"],
        "listed the directories",
        (module("opt-names", ""),),
    ),
    "a .pth file": Difference(
        module("p-pth", "import builtins\nSAW = getattr(builtins, 'of_pth', None)\n"),
        "hooked",
        ".pth",
        (plain("opt-pth", {"opt.pth": "import builtins; builtins.of_pth = 'hooked'\n", "opt_pth.py": ""}),),
    ),
    "a file of the function's": Difference(
        module("p-file", "import os\nSAW = os.path.exists('p.cfg')\n"),
        True,
        "looked for the file p.cfg",
        files={"p.cfg": "x"},
    ),
    "a file of the function's that C opens": Difference(
        module(
            "p-fopen",
            "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.fopen.restype = ctypes.c_void_p\n"
            "SAW = bool(libc.fopen(b'/var/task/conf/p.cfg', b'r'))\n",
        ),
        True,
        "looked for the file conf",
        files={"conf/p.cfg": "x"},
    ),
    "a listing of the function's files": Difference(
        module("p-glob", "import glob\nSAW = glob.glob('*.ini')\n"),
        ["p.ini"],
        "listed the function's directory",
        files={"p.ini": ""},
    ),
    "a variable that Python reads": Difference(
        module("p-env", "import os\nSAW = os.environ.get('P_ENV')\n"), "set", "variable P_ENV", env={"P_ENV": "set"}
    ),
    "a variable that C reads": Difference(
        module(
            "p-getenv",
            "import ctypes\ngetenv = ctypes.CDLL(None).getenv\ngetenv.restype = ctypes.c_char_p\n"
            "SAW = (getenv(b'P_GETENV') or b'').decode()\n",
        ),
        "set",
        "variable P_GETENV",
        env={"P_GETENV": "set"},
    ),
    "all variables": Difference(
        module("p-all", "import os\nSAW = sorted(n for n in os.environ if n.startswith('P_ALL'))\n"),
        ["P_ALL_1"],
        "variable",
        env={"P_ALL_1": "x"},
    ),
    "a variable that the worker sets": Difference(
        module("p-worker", "import os\nSAW = os.environ.get('AWS_LAMBDA_FUNCTION_NAME')\n"),
        "then-p-worker",
        "variable AWS_LAMBDA_FUNCTION_NAME",
    ),
    "the number of threads": Difference(
        module("p-threads", "import os\nSAW = os.environ['OPENBLAS_NUM_THREADS']\n"),
        "2",
        "variable OPENBLAS_NUM_THREADS",
        env={"OPENBLAS_NUM_THREADS": "2"},
    ),
    "the limit of open files": Difference(
        module("p-limit", "import os\nSAW = os.sysconf('SC_OPEN_MAX')\n"),
        77,
        "read the limit of open files",
        settings={"open_files": 77},
    ),
    "the size of /tmp": Difference(
        module("p-size", "import shutil\nSAW = shutil.disk_usage('/tmp').total >> 20\n"),
        77,
        "read the size of a file system",
        settings={"tmp_mb": 77},
    ),
    "the locale": Difference(
        module("p-locale", "import locale\nSAW = locale.setlocale(locale.LC_ALL, '')\n"),
        "C",
        "variable LC_ALL",
        env={"LC_ALL": "C"},
    ),
}


@case(
    "P1",
    "learn a package for one function, then deploy another with something that the package looks for while it is imported",
    expect="the second function answers as in a start of its own, and the worker says why the Zygote was passed over",
)
@pytest.mark.parametrize("kind", DIFFERENCES)
def test_what_an_import_would_see_otherwise_is_not_shared(worker: PrivateWorker, kind: str, happened: Happened) -> None:
    difference = DIFFERENCES[kind]
    name = difference.package[0].split("-")[0].replace("_", "-")
    learn(worker, name, difference.package)
    code = f"import {name.replace('-', '_')} as p\ndef f(event): return p.SAW\n"
    besides = [wheel[0].split("-")[0].replace("_", "-") for wheel in difference.besides]
    worker.deploy(
        f"then-{name}",
        {**difference.files, "f.py": code},
        requirements=[name, *besides],
        wheels=difference.besides,
        env=dict(difference.env),
        **difference.settings,
    )
    assert worker.call(f"then-{name}") == difference.expected
    answer = worker.daemon.run_learned(f"then-{name}")
    assert answer.json == difference.expected
    reasons = reasons_of(worker, name)
    happened("; ".join(reasons))
    assert any(difference.reason in reason for reason in reasons), reasons
    assert not any("differs" in reason for reason in reasons), "it was left to verification"
    for passed_over in worker.json(f"/functions/then-{name}/imports")["passed_over"]:
        assert passed_over["packages"] == [f"{name}==1.0"] and passed_over["reason"] in reasons
        assert worker.json(f"/traces/{answer.headers['x-amzn-requestid']}")["passed_over"] == passed_over["reason"]


@case(
    "P1",
    "learn a package beside another whose .pth file changes the standard library, then deploy a function without the other",
    expect="the function's standard library is unchanged",
)
def test_a_package_that_was_not_requested_is_not_shared(worker: PrivateWorker) -> None:
    unasked = plain("p-unasked", {"p_unasked.pth": "import builtins; builtins.of_unasked = 1\n", "p_unasked.py": ""})
    code = "import builtins, p_asked\ndef f(event): return hasattr(builtins, 'of_unasked')\n"
    both, wheels = ["p-asked", "p-unasked"], [module("p-asked", ""), unasked]
    worker.deploy("first-p-asked", code, requirements=both, wheels=wheels)
    assert worker.call("first-p-asked") is True
    assert worker.call_learned("first-p-asked") is True
    worker.deploy("then-p-asked", code, requirements=["p-asked"])
    assert worker.call("then-p-asked") is False
    assert worker.daemon.run_learned("then-p-asked").json is False
    assert any("does not have p-unasked" in reason for reason in reasons_of(worker, "p-asked"))


@dataclass(frozen=True)
class TopLevels:
    """Two functions with the same requirements; the Zygote that the first one leads to must not serve the second one."""

    packages: tuple[tuple[str, bytes], ...]
    first: str
    then: str
    expected: Any
    """The answer of the second one; what the first one returns does not count."""
    reason: str = ""
    """A part of why the Zygote is passed over; empty: it has imports that the second function does not do."""


STATE = plain("t-state", {"t_state.py": "DONE = []\n"})
APPENDS = "import t_state\nt_state.DONE.append('{0}')\n"
IN_ORDER = "import t_state, {0}, {1}\ndef f(event): return t_state.DONE\n"
SETS = "import builtins\nbuiltins.of_{0} = 1\n"
SEES = "import builtins\ndef f(event): return hasattr(builtins, 'of_{0}')\n"
READS = "import os\nSAW = os.environ.get('T_MODE')\n"

TOP_LEVELS = {
    "a package that it has and does not import": TopLevels(
        (module("t-idle", SETS.format("idle")),), "import t_idle\ndef f(event): return 1\n", SEES.format("idle"), False
    ),
    "a part of a package that it does not import": TopLevels(
        (module("t-part", "", t_parts__a=SLOW, t_parts__b=SLOW + SETS.format("part")),),
        "import t_parts.a, t_parts.b\ndef f(event): return 1\n",
        f"import t_parts.a\n{SEES.format('part')}",
        False,
    ),
    "a variable that its code sets before the import": TopLevels(
        (module("t-before", READS),),
        "import t_before as p\ndef f(event): return p.SAW\n",
        "import os\nos.environ['T_MODE'] = 'fast'\nimport t_before as p\ndef f(event): return p.SAW\n",
        "fast",
        "the function's own code changes os.environ['T_MODE'] before it imports t_before",
    ),
    "a variable that its code sets, and a Zygote has read": TopLevels(
        (module("t-asked", "import os\nSAW = os.environ.get('T_MODE') if os.getpid() != 1 else None\n"),),
        "import t_asked as p\ndef f(event): return p.SAW\n",
        "import os\nos.environ['T_MODE'] = 'fast'\nimport t_asked as p\ndef f(event): return p.SAW\n",
        None,
        "the function's own code changes os.environ['T_MODE'], which an import read",
    ),
    "what its code changes between two imports": TopLevels(
        (module("t-between", "import t_state\nSAW = list(t_state.DONE)\n"), STATE),
        "import t_state, t_between as p\ndef f(event): return p.SAW\n",
        "import t_state\nt_state.DONE.append('own')\nimport t_between as p\ndef f(event): return p.SAW\n",
        ["own"],
        "the function's own code changes t_state.DONE before it imports t_between",
    ),
    "what a module of its code changes": TopLevels(
        (module("t-helped", READS),),
        "import t_helped as p\ndef f(event): return p.SAW\n",
        "import settings, t_helped as p\ndef f(event): return p.SAW\n",
        "fast",
        "the function's own code changes os.environ['T_MODE'] before it imports t_helped",
    ),
    "the whole of an import of which its code has a part before": TopLevels(
        (
            module("t-outer", APPENDS.format("outer") + "import t_inner\n"),
            module("t-inner", "import t_state\nSAW = list(t_state.DONE)\n"),
            STATE,
        ),
        "import t_outer\ndef f(event): return 1\n",
        "import t_inner as p, t_outer\ndef f(event): return p.SAW\n",
        [],
        "another import of the function loads a part of t_outer first",
    ),
    "the order of packages that change each other": TopLevels(
        (module("t-one", APPENDS.format("one")), module("t-two", APPENDS.format("two")), STATE),
        IN_ORDER.format("t_one", "t_two"),
        IN_ORDER.format("t_two", "t_one"),
        ["two", "one"],
        "the function imports in another order",
    ),
}


@case(
    "P1",
    "learn packages, then deploy a function with the same requirements whose top level does something else with them: less, in "
    "another order, after changes of its own",
    expect="the second function answers as in a start of its own, and the worker says why the Zygote was passed over",
)
@pytest.mark.parametrize("kind", TOP_LEVELS)
def test_what_its_top_level_would_not_have_is_not_shared(worker: PrivateWorker, kind: str, happened: Happened) -> None:
    top_levels = TOP_LEVELS[kind]
    names = [package[0].split("-")[0].replace("_", "-") for package in top_levels.packages]
    first, then = f"first-{names[0]}", f"then-{names[0]}"
    worker.deploy(first, top_levels.first, requirements=names, wheels=top_levels.packages)
    worker.call(first)
    worker.call_learned(first)
    files = {"settings.py": "import os\nos.environ['T_MODE'] = 'fast'\n", "f.py": top_levels.then}
    worker.deploy(then, files, requirements=names)
    assert worker.call(then) == top_levels.expected
    assert worker.daemon.run_learned(then).json == top_levels.expected
    reasons = [reason for node in worker.daemon.nodes() for reason in node["passed_over"]]
    happened("; ".join(reasons))
    assert any(top_levels.reason in reason for reason in reasons) or not top_levels.reason, reasons
    assert not any("differs" in reason for reason in reasons), "it was left to verification"


def reasons_of(worker: PrivateWorker, name: str) -> list[str]:
    """Why the Zygotes of a package are passed over."""
    nodes = [node for node in worker.daemon.nodes() if node["packages"] == {f"{name}==1.0"}]
    return sorted({reason for node in nodes for reason in node["passed_over"]})


def learn(worker: PrivateWorker, name: str, package: tuple[str, bytes]) -> None:
    """Have a Zygote of a package, and a function of it alone, served by that Zygote."""
    code = f"import os, {name.replace('-', '_')} as p\ndef f(event): return p.SAW\n"
    worker.deploy(f"first-{name}", code, requirements=[name], wheels=[package])
    worker.invoke(f"first-{name}")
    try:
        worker.daemon.when(lambda: worker.daemon.node(f"{name}==1.0"))
    except AssertionError as error:
        raise AssertionError(f"no Zygote of {name}: {worker.json(f'/functions/first-{name}/imports')}") from error


ALIKE = {
    "a module that nobody looks for": Difference(
        module("q-other", TRY.format("opt_other")), None, "", (module("unasked", ""),)
    ),
    "a variable that nobody reads": Difference(
        module("q-env", "import os\nSAW = os.environ.get('Q_ENV')\n"), None, "", env={"Q_UNREAD": "set"}
    ),
    "another part of a namespace package": Difference(
        module("q-part", "import q_space.own\nSAW = q_space.own.OWN\n", q_space__own="OWN = 1\n"),
        1,
        "",
        (plain("opt-q-part", {"q_space/other.py": ""}),),
    ),
    "code with modules of its own": Difference(
        module("q-code", "import colorsys\nSAW = 1\n"), 1, "", files={"helper.py": "", "data/x.txt": ""}
    ),
    "a .pth file that both have": Difference(
        plain(
            "q-pth",
            {
                "q_pth.py": SLOW + "import builtins\nSAW = builtins.runs_of_pth\n",
                "q.pth": "import builtins; builtins.runs_of_pth = getattr(builtins, 'runs_of_pth', 0) + 1\n",
            },
        ),
        1,
        "",
        (module("unasked-pth", ""),),
    ),
    "the same entry points": Difference(
        module("q-plugins", "import importlib.metadata as m\nSAW = len(m.entry_points(group='q.plugins'))\n"),
        0,
        "",
        (plain("opt-q", {"opt_q.py": "", "opt_q-1.0.dist-info/entry_points.txt": "[other]\nplug = opt_q\n"}),),
    ),
}


@case(
    "P2",
    "learn a package for one function, then deploy another with packages, code and variables that its imports do not look for",
    expect="once that is verified, the second function is forked from the Zygote: it imports nothing itself, and answers rightly",
)
@pytest.mark.parametrize("kind", ALIKE)
def test_what_an_import_would_not_see_does_not_hinder_sharing(worker: PrivateWorker, kind: str) -> None:
    same = ALIKE[kind]
    name = same.package[0].split("-")[0].replace("_", "-")
    learn(worker, name, same.package)
    module_name = name.replace("-", "_")
    code = f"import {module_name} as p\ndef f(event): return p.SAW\n"
    besides = [wheel[0].split("-")[0].replace("_", "-") for wheel in same.besides]
    worker.deploy(
        f"then-{name}",
        {**same.files, "f.py": code},
        requirements=[name, *besides],
        wheels=same.besides,
        env=dict(same.env),
    )
    first = worker.invoke(f"then-{name}")
    assert first.json == same.expected
    trace = worker.json(f"/traces/{first.headers['x-amzn-requestid']}")
    assert trace["zygote"] == "root Zygote", "served before it was verified"
    assert worker.call_learned(f"then-{name}") == same.expected
    worker.daemon.wait_line(rf"is verified for then-{re.escape(name)}@")
    assert worker.json(f"/functions/then-{name}/imports")["passed_over"] == []


@case(
    "P3",
    "deploy two functions with one package in common, which requires another that each of them has in another version",
    expect="each is right in its first start and in learned ones, and no package is refused: no plan lacks what it requires",
)
def test_the_common_part_of_two_locks_lacks_nothing_that_it_requires(worker: PrivateWorker) -> None:
    worker.index.add(
        wheel(
            "r-lib", "1.0", {"r_lib.py": SLOW + "import r_dep, r_base\nSAW = r_dep.V\n"}, requires=("r-dep", "r-base")
        )
    )
    worker.index.add(wheel("r-base", "1.0", {"r_base.py": SLOW}))
    for version in ("1.0", "2.0"):
        worker.index.add(wheel("r-dep", version, {"r_dep.py": SLOW + f"V = {version}\n"}))
    code = "import r_lib, r_base\ndef f(event): return r_lib.SAW\n"
    for round in range(3):
        for version in ("1.0", "2.0"):
            name = f"r-{round}-{version[0]}"
            worker.deploy(name, f"# {round}\n{code}", requirements=["r-lib", f"r-dep=={version}"])
            assert worker.call(name) == float(version)
            assert worker.call_learned(name) == float(version)
            if round == 0:
                worker.daemon.when(lambda v=version: worker.daemon.node("r-lib==1.0", "r-base==1.0", f"r-dep=={v}"))  # type: ignore[misc]
    assert not any(row["package"].startswith("r-") for row in worker.json("/tree")["refused"])
    with_lib = [node["packages"] for node in worker.daemon.nodes() if "r-lib==1.0" in node["packages"]]
    assert with_lib and all(
        {"r-base==1.0"} < packages and packages & {"r-dep==1.0", "r-dep==2.0"} for packages in with_lib
    )


CHILD = (
    "import subprocess\nSAW = subprocess.run(['printenv', 'P_CHILD'], capture_output=True, text=True).stdout.strip()\n"
)


@case(
    "P1",
    "learn a package beside another that starts a process in its import, for functions with another variable each",
    expect="each function's child has the function's variable; the worker names the program; the other package is shared",
)
def test_an_import_that_starts_a_process_is_each_functions_own(worker: PrivateWorker, happened: Happened) -> None:
    wheels = [module("p-child", CHILD), module("p-beside", "SAW = 1\n")]
    code = "import p_beside, p_child\ndef f(event): return p_child.SAW\n"
    for value in ("one", "other"):
        env = {"P_CHILD": value}
        worker.deploy(f"child-{value}", code, requirements=["p-child", "p-beside"], wheels=wheels, env=env)
        assert worker.call(f"child-{value}") == value
        worker.daemon.run_learned(f"child-{value}")
    worker.daemon.when(lambda: any(row["name"] == "p-child" and row.get("reason") for row in worker.json("/packages")))
    (reason,) = [row["reason"] for row in worker.json("/packages") if row["name"] == "p-child"]
    happened(reason)
    assert "an import starts printenv, which sees the Zygote's variables" in reason
    for value in ("one", "other"):
        assert worker.call_learned(f"child-{value}") == value
    packages = [node["packages"] for node in worker.daemon.nodes()]
    assert {"p-beside==1.0"} in packages and not any("p-child==1.0" in each for each in packages)


@case(
    "P1",
    "learn packages whose imports run `uname -p`, by `platform` and by themselves, with a failure",
    expect="a Zygote serves, as the program reads nothing of a function; the import has found its exit status",
)
def test_a_harmless_process_of_an_import_ends_as_in_a_start_of_its_own(worker: PrivateWorker) -> None:
    saw = (
        "import platform, subprocess\nplatform.processor()\nwith open('/dev/full', 'w') as full:\n"
        "    SAW = subprocess.run(['uname', '-p'], stdout=full, stderr=subprocess.DEVNULL).returncode\n"
    )
    learn(worker, "p-uname", module("p-uname", saw))
    assert worker.call("first-p-uname") == worker.call_learned("first-p-uname") == 1
