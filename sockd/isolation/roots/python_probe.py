"""The program with which an image's Python says what it is: `python -c SOURCE`, in a sandbox, as a program of the Runtime API.

Each event has modules of ours; the answer has their bytecode, and what a Zygote of this interpreter must know. It runs in any
Python 3, and imports nothing of ours.
"""

import base64
import importlib.util
import json
import marshal
import os
import site
import sys
import sysconfig
from http.client import HTTPConnection

API = "/2018-06-01/runtime/invocation"
CLIENT = "awslambdaric"
CUSTOMIZING = "sitecustomize", "usercustomize"
HOOK = "apport_python_hook"
IDLE = f"""
try:
    import {HOOK}
except ImportError:
    pass
else:
    {HOOK}.install()
"""
"""Debian's and Ubuntu's sitecustomize. Without that module it does nothing."""


def facts(first: "list[str]") -> "dict[str, object]":
    """What is asked of the interpreter. Args: first: directories that its runtime puts before sys.path, if they are there."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    ahead = [each.format(version) for each in first]
    path = [each for each in [*ahead, *sys.path[1:]] if each and (each not in ahead or os.path.isdir(each))]
    library = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    own = {each for each in path if each.endswith(".zip")} | library | {f"{each}/lib-dynload" for each in library}
    sites = {*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])}
    roots = [each for each in path if each not in own and os.path.isdir(each)]
    pth = [
        each for each in roots if each in {*sites, *ahead} and any(name.endswith(".pth") for name in os.listdir(each))
    ]
    idle = idle_customization()
    return {
        "executable": sys.executable,
        "version": sys.version_info[:3],
        "cache_tag": sys.implementation.cache_tag,
        "implementation": sys.implementation.name,
        "is_final": sys.version_info.releaselevel == "final",
        "has_gil": not sysconfig.get_config_var("Py_GIL_DISABLED"),
        "customized": [name for name in CUSTOMIZING if name in sys.modules and not (idle and name == CUSTOMIZING[0])],
        "sitecustomize": idle,
        "has_client": can_import(CLIENT),
        "path": path,
        "roots": roots,
        "pth": pth,
    }


def idle_customization() -> str:
    """The file of the sitecustomize that `site` has imported, if that has done nothing; else empty."""
    module = sys.modules.get("sitecustomize")
    file = getattr(module, "__file__", None) or ""
    try:
        code = module.__loader__.get_code("sitecustomize")  # type: ignore[union-attr]  # what was run: it may be bytecode alone
    except (AttributeError, ImportError, OSError, SyntaxError, ValueError):
        return ""
    is_idle = parts_of(code) == parts_of(compile(IDLE, file, "exec", dont_inherit=True)) and not can_import(HOOK)
    return file if is_idle and os.path.basename(file) == "sitecustomize.py" else ""


def parts_of(code: object) -> "list[object]":
    """What code does, whatever its lines."""
    names = ("co_code", "co_consts", "co_names", "co_exceptiontable")
    return [getattr(code, name, None) for name in names]


def can_import(name: str) -> bool:
    """Whether a module of this name is found; it is not imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, AttributeError, ValueError):
        return True


def compiled(modules: "dict[str, str]") -> "dict[str, str]":
    """Bytecode files of modules, by the path that they have in the sandbox; none of an interpreter that is too old for them."""
    if sys.version_info < (3, 11):  # noqa: UP036  it runs in whatever an image has
        return {}
    head = importlib.util.MAGIC_NUMBER + b"\1\0\0\0" + bytes(8)  # valid whatever the source's time (PEP 552, unchecked)
    files = {path: marshal.dumps(compile(source, path, "exec", dont_inherit=True)) for path, source in modules.items()}
    return {path: base64.b64encode(head + code).decode() for path, code in files.items()}


def main() -> None:
    """Answer events until the sandbox ends."""
    api = os.environ["AWS_LAMBDA_RUNTIME_API"]
    while True:
        connection = HTTPConnection(api)
        connection.request("GET", f"{API}/next")
        response = connection.getresponse()
        event = json.loads(response.read())
        number = response.getheader("Lambda-Runtime-Aws-Request-Id")
        answer = json.dumps({"facts": facts(event["first"]), "compiled": compiled(event["modules"])})
        connection.request("POST", f"{API}/{number}/response", answer)
        connection.getresponse().read()
        connection.close()


if __name__ == "__main__":
    main()
