"""Handlers in container images, served by Zygotes of the image's own Python, and compared with the same handlers as programs."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.images.test_images import deploy, upload
from tests.daemon.running import DeployFailed, RunningDaemon
from tests.daemon.starts.test_zygote_tree_of_a_daemon import LOUD, SLOW
from tests.isolation.roots.test_python_probe import DEBIANS
from tests.support.harness import namespaces_of, status_of
from tests.support.images.image_layouts import ASK, PYTHON, Files, packages_folder, python_files, write_layout

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]

SITE = f"opt/python/lib/python{sys.version_info[0]}.{sys.version_info[1]}/{packages_folder()}"
RUNTIME_CLIENT = (
    """
import http.client, importlib, json, os, sys
sys.path.insert(0, os.getcwd())
name, _, attribute = sys.argv[1].rpartition(".")
handler = getattr(importlib.import_module(name), attribute)
"""
    + ASK
    + """
class Context: pass
while True:
    headers, event = ask("GET", "invocation/next")
    context = Context()
    context.aws_request_id = headers["Lambda-Runtime-Aws-Request-Id"]
    try:
        answer = json.dumps(handler(json.loads(event), context))
    except Exception as error:
        failure = {"errorType": type(error).__name__, "errorMessage": str(error), "stackTrace": []}
        ask("POST", "invocation/" + context.aws_request_id + "/error", json.dumps(failure))
    else:
        ask("POST", "invocation/" + context.aws_request_id + "/response", answer)
"""
)
"""As AWS's awslambdaric, in short."""
APP = """
import os, sys, sockets, hooked_by_pth, slow_package
def handler(event, context):
    if event.get("raise"):
        raise KeyError(event["raise"])
    return {
        "event": event, "cwd": os.getcwd(), "path": sys.path, "version": list(sys.version_info), "executable": sys.executable,
        "env": dict(os.environ), "uid": os.getuid(), "hooked": hooked_by_pth.done, "package": slow_package.V,
        "shadowed": sockets.WHERE, "listed": sorted(os.listdir(".")), "tmp": os.listdir("/tmp"),
        "writable": [each for each in ("/", "/app", "/tmp") if os.access(each, os.W_OK)], "argv": sys.argv[1:],
        "host": [each for each in ("/usr/bin/env", "/etc/shadow", "/packages/x") if os.path.exists(each)],
    }
"""
FILES = Files(
    plain={
        "app/app.py": APP,
        "app/sockets.py": "WHERE = 'the code'\n",
        f"{SITE}/sockets.py": "WHERE = 'the packages'\n",
        f"{SITE}/awslambdaric/__init__.py": "",
        f"{SITE}/awslambdaric/__main__.py": RUNTIME_CLIENT,
        f"{SITE}/slow_package/__init__.py": SLOW + LOUD + "V = 1\n",
        f"{SITE}/hooked_by_pth.py": "done = False\n",
        f"{SITE}/hook.pth": "import hooked_by_pth; hooked_by_pth.done = True\n",
        f"{SITE}/more.pth": "/opt/more\n",
        "opt/more/empty.py": "",
    }
)
CONFIG = {
    "Entrypoint": [PYTHON, "-m", "awslambdaric"],
    "Cmd": ["app.handler"],
    "Env": ["PATH=/opt/python/bin", "GREETING=from the image"],
    "WorkingDir": "/app",
}
OWN_TO_ZYGOTES = {
    *("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "MALLOC_ARENA_MAX"),
    *(
        "AWS_LAMBDA_RUNTIME_API",
        "AWS_LAMBDA_FUNCTION_NAME",
        "AWS_LAMBDA_LOG_GROUP_NAME",
        "LC_CTYPE",
        "LAMBDA_RUNTIME_DIR",
    ),
}
"""Variables that differ: threads of libraries at a fork, the address of a program's API, the two functions' names."""


@pytest.fixture(scope="module")
def image(daemon: RunningDaemon, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Its digest."""
    path = tmp_path_factory.mktemp("image")
    write_layout(path, [python_files().tar(), FILES], CONFIG)
    return upload(daemon, path)


def roots(daemon: RunningDaemon) -> list[dict[str, Any]]:
    return [node for node in daemon.nodes() if node["interpreter"].startswith("image:")]


def zygotes(daemon: RunningDaemon) -> list[int]:
    """Processes of the image's Python that are Zygotes."""
    found = []
    for pid in daemon.pids():
        try:
            is_zygote = Path(f"/proc/{pid}/comm").read_text() == "sockd-zygote\n"
            if is_zygote and os.readlink(f"/proc/{pid}/exe") == os.path.realpath(PYTHON):
                found.append(pid)
        except FileNotFoundError:
            continue
    return found


def served(daemon: RunningDaemon, name: str, image: str, **settings: Any) -> None:
    deploy(daemon, name, image, **settings)
    daemon.wait_line(rf"deploy of {name}: served by Zygotes of the image's Python 3\.")


def test_a_handler_answers_as_its_image_run_as_a_program(daemon: RunningDaemon, image: str) -> None:
    served(daemon, "by-zygote", image)
    deploy(daemon, "as-program", image, zygote="none")
    daemon.wait_line(r'deploy of as-program: runs as a program: zygote = "none"')
    for event in ({}, {"a": [1, 2.5, None, "é"]}):
        ours, theirs = daemon.call("by-zygote", event), daemon.call("as-program", event)
        mine, own = ours.pop("env"), theirs.pop("env")
        assert theirs.pop("argv") == ["app.handler"] and ours.pop("argv") is not None
        assert ours == theirs
        assert {key: mine[key] for key in mine.keys() - OWN_TO_ZYGOTES} == {
            key: own[key] for key in own.keys() - OWN_TO_ZYGOTES
        }
    assert ours["shadowed"] == "the code" and ours["hooked"] is True and "/opt/more" in ours["path"]
    assert ours["host"] == [] and ours["writable"] == ["/tmp"]
    failures = [daemon.run(name, {"raise": "no"}) for name in ("by-zygote", "as-program")]
    assert [failure.json["errorType"] for failure in failures] == ["KeyError"] * 2


LIBRARY = SITE.rpartition("/")[0]
CUSTOMIZED = """
import sys, slow_package
def handler(event, context):
    import sitecustomize
    spec = sitecustomize.__spec__
    reported = [sitecustomize.__file__, sitecustomize.__cached__, spec.name, spec.origin, type(spec.loader).__name__]
    return reported, sorted(vars(sitecustomize)), "apport_python_hook" in sys.modules, "importlib.util" in sys.modules
"""
"""A handler that tells how it finds sitecustomize."""


def with_sitecustomize(text: str, **more: str) -> list[Files | bytes]:
    """The layers of an image with a sitecustomize as Debian has it."""
    files = {**FILES.plain, "app/app.py": CUSTOMIZED, "etc/python3/sitecustomize.py": text, **more}
    links = {f"{LIBRARY}/sitecustomize.py": "/etc/python3/sitecustomize.py"}
    return [python_files().tar(), Files(plain=files, links=links)]


def test_a_sitecustomize_that_does_nothing_is_what_it_is_in_a_program(daemon: RunningDaemon, tmp_path: Path) -> None:
    own = {"app/sitecustomize.py": "raise SystemExit('this is the code's')"}
    write_layout(tmp_path, with_sitecustomize(DEBIANS, **own), CONFIG)
    digest = upload(daemon, tmp_path)
    served(daemon, "customized-zygote", digest, reuse_sandbox=False)
    deploy(daemon, "customized-program", digest, zygote="none")
    of_program = daemon.call("customized-program")
    assert of_program[0][0] == f"/{LIBRARY}/sitecustomize.py" and of_program[2] is False
    assert daemon.call("customized-zygote") == of_program
    daemon.when(lambda: [node for node in roots(daemon) if node["packages"]])
    daemon.wait_verified()
    assert daemon.call("customized-zygote") == of_program, "forked from a Zygote with packages"
    mark = daemon.mark
    daemon.remove("customized-zygote")
    daemon.wait_line("has no farm any more", since=mark)


def test_a_handler_that_nothing_can_run_is_refused(daemon: RunningDaemon, tmp_path: Path) -> None:
    layers: list[Files | bytes] = [
        python_files().tar(),
        Files({"app/app.py": "def handler(event, context): return 1\n"}),
    ]
    write_layout(tmp_path / "plain", layers, {**CONFIG, "Entrypoint": []})
    custom = Files({f"{LIBRARY}/sitecustomize.py": DEBIANS + "import json\n"})
    write_layout(tmp_path / "custom", [*layers, custom], {**CONFIG, "Entrypoint": []})
    plain, customized = (upload(daemon, tmp_path / name) for name in ("plain", "custom"))
    settings = {"handler": "app:handler", "runtime": "python"}
    for digest, more, why in (
        (plain, {"zygote": "none"}, 'zygote = "none"'),
        (plain, {"writable_root": True}, "it is a program (writable_root)"),
        (customized, {}, "its Python imports sitecustomize at each start"),
    ):
        with pytest.raises(DeployFailed) as caught:
            deploy(daemon, "refused", digest, **settings, **more)
        assert "has no module awslambdaric" in str(caught.value) and why in str(caught.value)
        assert "InvalidParameterValueException" in str(caught.value)
    served(daemon, "refused", plain, **settings)
    assert daemon.call("refused") == 1
    daemon.remove("refused")


AWS_BOOTSTRAP = """
import os, sys
version = f"{sys.version_info[0]}.{sys.version_info[1]}"
sys.path[:0] = [os.environ["LAMBDA_TASK_ROOT"], f"/opt/python/lib/python{version}/site-packages", "/opt/python"]
sys.argv = ["bootstrap", os.environ["_HANDLER"]]
"""
AWS_LAYOUT = Files(
    plain={
        "var/runtime/bootstrap.py": AWS_BOOTSTRAP + RUNTIME_CLIENT.replace("sys.path.insert(0, os.getcwd())\n", ""),
        "var/runtime/of_the_runtime.py": "",
        "opt/python/of_a_layer.py": "",
        f"{LIBRARY}/site-packages/of_a_layer_too.py": "",
        "var/task/app.py": "import sys, of_the_runtime, of_a_layer\n"
        "def handler(event, context): return sys.path, of_a_layer.__file__, of_the_runtime.__file__\n",
    },
    executable={
        "lambda-entrypoint.sh": f"#!{PYTHON}\nimport os, sys\nos.environ['_HANDLER'] = sys.argv[1]\n"
        "os.execv('/var/lang/bin/python3', ['python3', '/var/runtime/bootstrap.py'])\n"
    },
    links={"var/lang": "/opt/python"},
)
"""As of AWS's base images for Python: what starts what, and where modules are."""


def test_modules_of_an_aws_images_layers_and_runtime_are_found(daemon: RunningDaemon, tmp_path: Path) -> None:
    settings = {"Entrypoint": ["/lambda-entrypoint.sh"], "Cmd": ["app.handler"], "WorkingDir": "/var/task"}
    variables = ["LAMBDA_TASK_ROOT=/var/task", "LAMBDA_RUNTIME_DIR=/var/runtime", "PATH=/var/lang/bin"]
    write_layout(tmp_path, [python_files().tar(), AWS_LAYOUT], {**settings, "Env": variables})
    digest = upload(daemon, tmp_path)
    served(daemon, "aws-handler", digest)
    deploy(daemon, "aws-program", digest, zygote="none")
    path, *files = daemon.call("aws-handler")
    of_program, *files_of_program = daemon.call("aws-program")
    assert files == files_of_program == ["/opt/python/of_a_layer.py", "/var/runtime/of_the_runtime.py"]
    assert list(dict.fromkeys(path))[:4] == of_program[:4]
    mark = daemon.mark
    daemon.remove("aws-handler")
    daemon.wait_line("has no farm any more", since=mark)


def test_its_packages_are_imported_once_for_all_functions_of_the_image(daemon: RunningDaemon, image: str) -> None:
    served(daemon, "first", image, reuse_sandbox=False)
    daemon.call("first", {})
    daemon.when(lambda: [node for node in roots(daemon) if node["packages"]])
    served(daemon, "second", image)
    daemon.call("second", {})
    answer = daemon.run_learned("second", {})
    assert answer.json["package"] == 1 and daemon.log_of("second", answer) == "", "it was imported in a Zygote"


def test_the_images_python_has_no_capability_outside_of_its_user_namespace(daemon: RunningDaemon, image: str) -> None:
    served(daemon, "confined", image)
    daemon.call("confined", {})
    for pid in daemon.when(lambda: zygotes(daemon)):
        status, namespaces = status_of(pid), namespaces_of(pid)
        assert namespaces["user"] != namespaces_of("self")["user"] and "0" not in status["Uid"].split()
        assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2"
        assert not os.path.exists(f"/proc/{pid}/root/usr/bin/env") and os.path.exists(f"/proc/{pid}/root{PYTHON}")


def test_a_zygote_that_is_killed_is_made_anew(daemon: RunningDaemon, image: str) -> None:
    served(daemon, "killed", image, reuse_sandbox=False)
    daemon.call("killed", {})
    for pid in daemon.when(lambda: zygotes(daemon)):
        os.kill(pid, signal.SIGKILL)
    assert daemon.call("killed", {"again": 1})["event"] == {"again": 1}


def test_without_network_it_reaches_none(daemon: RunningDaemon, image: str) -> None:
    served(daemon, "alone", image, network="none")
    daemon.call("alone", {})
    assert any(node["network"] == "none" for node in roots(daemon))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"Entrypoint": [PYTHON, "-S", "-m", "awslambdaric"]}, "its ENTRYPOINT gives Python options: -S"),
        ({"Entrypoint": [PYTHON, "/app/main.py"]}, "its ENTRYPOINT is not python -m awslambdaric"),
        ({"Cmd": ["no handler"]}, "it names no handler"),
        ({"Entrypoint": ["/nowhere/python", "-m", "awslambdaric"]}, "its Python did not answer"),
    ],
)
def test_other_images_run_as_programs_and_the_deploy_says_why(
    daemon: RunningDaemon, tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    write_layout(tmp_path, [FILES], {**CONFIG, **changes})
    digest, mark = upload(daemon, tmp_path), daemon.mark
    deploy(daemon, "program", digest)
    daemon.wait_line(f"deploy of program: runs as a program: {why}", since=mark)


def test_the_images_zygotes_end_with_its_last_function(daemon: RunningDaemon, image: str) -> None:
    served(daemon, "last", image)
    daemon.call("last", {})
    mark = daemon.mark
    for name in ("by-zygote", "first", "second", "confined", "killed", "alone", "last"):
        daemon.remove(name)
    daemon.wait_line("has no farm any more", since=mark)
    assert not roots(daemon) and not zygotes(daemon)
    assert not [*(daemon.state / "pythons" / "images").iterdir()]


def test_the_last_words_of_a_python_that_does_not_start_are_reported(daemon: RunningDaemon, tmp_path: Path) -> None:
    dies = Files(executable={"app/dies": f"#!{PYTHON}\nraise SystemExit('no libpython3.so\\a')\n"})
    write_layout(
        tmp_path,
        [python_files(("os",)).tar(), FILES, dies],
        {**CONFIG, "Entrypoint": ["/app/dies", "-m", "awslambdaric"]},
    )
    digest, mark = upload(daemon, tmp_path), daemon.mark
    deploy(daemon, "dies", digest)
    why = r"its Python did not answer: Runtime exited with error: exit status 1 \(no libpython3.so\)"
    daemon.wait_line(why, since=mark)


def test_a_python_that_is_killed_at_its_deploy_makes_no_program_of_the_handler(
    daemon: RunningDaemon, tmp_path: Path
) -> None:
    killed = f"#!{PYTHON}\nimport os\nos.kill(os.getpid(), 9)\n"
    write_layout(
        tmp_path,
        [python_files(("os",)).tar(), FILES, Files(executable={"app/killed": killed})],
        {**CONFIG, "Entrypoint": ["/app/killed", "-m", "awslambdaric"]},
    )
    digest = upload(daemon, tmp_path)
    with pytest.raises(DeployFailed, match="try again") as reported:
        deploy(daemon, "dead", digest)
    assert (reported.value.type, reported.value.status) == ("Images.PythonFailed", 503)
    kept = [file.read_bytes() for file in daemon.state.glob(f"images/{digest.partition(':')[2]}/python-*.json")]
    assert kept == []
