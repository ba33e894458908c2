"""Functions in container images: how they are deployed, what their program finds, what goes wrong, and which images stay."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from sockd.linux import syscalls
from sockd.linux.syscalls import MountFlag
from tests.daemon.running import COMMAND, DeployFailed, RunningDaemon
from tests.support.emulated import SLOWER
from tests.support.images.image_layouts import ASK, PYTHON, Files, python_files, write_layout

pytestmark = pytest.mark.root

BOOTSTRAP = f"""#!{PYTHON}
import http.client, json, mmap, os, socket, sys
kept = []
{ASK}def refused(path):
    try:
        open(path, "w").close()
    except OSError as error:
        return error.strerror
    os.remove(path)
    return ""
def seen(event):
    what = (event or {{}}).get("what")
    if what == "map":
        with open(event["path"], "rb") as file:
            kept.append(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
        return kept[-1][0]
    if what == "touch":
        if "port" in event:
            socket.create_connection(("127.0.0.1", event["port"])).recv(1)
        return kept[-1][event["at"]]
    if what == "exit":
        os._exit(3)
    if what == "raise":
        raise KeyError("no")
    if what == "read":
        return open(event["path"]).read()
    if what == "list":
        return sorted(os.listdir(event["path"]))
    if what == "log":
        with open("/dev/stderr", "a") as file:
            print("as web servers do", file=file)
        return None
    if what == "write":
        return refused(event["path"])
    if what == "lookup":
        return socket.gethostbyname(socket.gethostname())
    return {{"argv": sys.argv, "cwd": os.getcwd(), "env": dict(os.environ), "uid": os.getuid(), "event": event,
             "version": open("/version").read()}}
while True:
    headers, event = ask("GET", "invocation/next")
    this = "invocation/" + headers["Lambda-Runtime-Aws-Request-Id"]
    try:
        answer = seen(json.loads(event))
    except KeyError as error:
        ask("POST", this + "/error", json.dumps({{"errorType": "KeyError", "errorMessage": str(error)}}))
    else:
        ask("POST", this + "/response", json.dumps(answer))
"""
CONFIG = {
    "Entrypoint": ["/app/bootstrap"],
    "Cmd": ["module.handler"],
    "Env": ["PATH=/opt/python/bin", "GREETING=from the image", "OTHER=from the image"],
    "WorkingDir": "/app",
    "Volumes": {"/data": {}},
    "User": "app",
}


@pytest.fixture(scope="module")
def python() -> bytes:
    """The layer with an interpreter."""
    return python_files().tar()


@pytest.fixture(scope="module")
def image(daemon: RunningDaemon, python: bytes, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image whose program speaks to the Runtime API; its digest."""
    path = tmp_path_factory.mktemp("image")
    write_layout(path, [python, app("1")], CONFIG)
    return upload(daemon, path)


def app(version: str) -> Files:
    return Files(
        plain={"version": version, "etc/passwd": "root:x:0:0::/:/bin/sh\n"}, executable={"app/bootstrap": BOOTSTRAP}
    )


def upload(daemon: RunningDaemon, layout: Path) -> str:
    """Send a layout as an archive; the digest of its image. Raises: DeployFailed."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(layout, ".")
    answer = daemon.manage("POST", "/images?reference=oci:made", packed.getvalue())
    last = json.loads(answer.body.splitlines()[-1])
    if answer.status != 200:  # refused before it was read
        raise DeployFailed(answer.status, last)
    if "error" in last:
        raise DeployFailed(last["status"], last["error"])
    return str(last["result"]["digest"])


def small(daemon: RunningDaemon, path: Path, files: Files, config: Mapping[str, Any]) -> str:
    """The digest of an image without an interpreter."""
    write_layout(path, [files], config)
    return upload(daemon, path)


def deploy(daemon: RunningDaemon, name: str, image: str, **settings: Any) -> dict[str, Any]:
    defaults = {"timeout_s": 10 * SLOWER, "init_timeout_s": 10 * SLOWER, "memory_mb": 128}
    return daemon.deploy(name, {}, image=image, **{**defaults, **settings})


def test_a_program_runs_as_its_image_says(daemon: RunningDaemon, image: str) -> None:
    deployed = deploy(daemon, "as-it-says", image, env={"GREETING": "from the function"})
    assert deployed["version"] == image.removeprefix("sha256:") and deployed["image"] == image
    answer = daemon.call("as-it-says", {"n": 1})
    assert answer["argv"] == ["/app/bootstrap", "module.handler"] and answer["cwd"] == "/app"
    assert answer["uid"] == 1000 and answer["event"] == {"n": 1}
    env = answer["env"]
    assert (env["GREETING"], env["OTHER"], env["PATH"]) == ("from the function", "from the image", "/opt/python/bin")
    assert (env["HOME"], env["_HANDLER"], env["AWS_LAMBDA_FUNCTION_NAME"]) == ("/tmp", "module.handler", "as-it-says")
    assert not {"PYTHONPATH", "OPENBLAS_NUM_THREADS", "AWS_EXECUTION_ENV"} & env.keys(), "the host's own are not its"


def test_settings_replace_the_entry_point_the_command_and_the_directory(daemon: RunningDaemon, image: str) -> None:
    deploy(daemon, "replaced", image, command=["other.handler", "-v"], working_directory="/opt")
    answer = daemon.call("replaced")
    assert (answer["argv"], answer["cwd"]) == (["/app/bootstrap", "other.handler", "-v"], "/opt")
    deploy(daemon, "replaced", image, entrypoint=["python3", "/app/bootstrap"])
    assert daemon.call("replaced")["argv"] == ["/app/bootstrap", "module.handler"], "as on AWS, CMD still holds"
    deploy(daemon, "replaced", image, command=[])
    assert daemon.call("replaced")["argv"] == ["/app/bootstrap"]


def test_a_program_is_started_once_before_it_serves(daemon: RunningDaemon, image: str) -> None:
    deploy(daemon, "checked", image, check=True)
    with pytest.raises(DeployFailed) as refused:
        deploy(daemon, "checked", image, check=True, entrypoint=["python3", "-c", "raise SystemExit('no start')"])
    assert refused.value.type == "Deploy.VersionFailed"
    assert daemon.call("checked")["argv"] == ["/app/bootstrap", "module.handler"]


WRITES = "import pathlib, os, sys\nfor path in sys.argv[2:]:\n    try:\n        pathlib.Path(path).write_text('x')\n"
WRITES += "    except OSError as error:\n        print(error, flush=True)\n        if sys.argv[1] == 'must':\n            raise\n"
WRITES += "os.execv(sys.executable, [sys.executable, '/app/bootstrap'])\n"


def test_a_deploy_tells_what_its_start_could_not_write(daemon: RunningDaemon, image: str) -> None:
    def entrypoint(*arguments: str) -> list[str]:
        return ["python3", "-c", WRITES, *arguments]

    with pytest.raises(DeployFailed) as refused:
        deploy(daemon, "writes", image, check=True, entrypoint=entrypoint("must", "/srv.db"))
    assert "could not write /srv.db (read-only file system): set writable_root = true" in refused.value.message
    reported = deploy(daemon, "writes", image, check=True, entrypoint=entrypoint("may", "/tmp/x", "/cache"))
    assert reported["version_number"] and daemon.call("writes")["argv"][0] == "/app/bootstrap"
    assert any("could not write /cache (read-only" in line for line in daemon.lines), daemon.lines


def test_a_second_request_is_warm(daemon: RunningDaemon, image: str) -> None:
    deploy(daemon, "warm", image)
    assert [daemon.run("warm").headers["x-sockd-cold"] for _ in range(3)] == ["1", "0", "0"]


def test_an_image_has_the_whole_root_and_nothing_of_the_host(daemon: RunningDaemon, image: str) -> None:
    deploy(daemon, "alone", image)

    def listed(path: str) -> list[str]:
        found: list[str] = daemon.call("alone", {"what": "list", "path": path})
        return found

    assert {"app", "opt", "version", "dev", "etc", "proc", "tmp", "var"} <= set(listed("/"))
    assert "usr" not in listed("/") or not listed("/usr")
    assert listed("/opt/sockd/sockd_zygote") == listed("/packages") == []
    assert set(listed("/dev")) >= {"null", "zero", "full", "random", "urandom", "fd", "shm", "stdin", "stdout"}
    assert set(listed("/etc")) >= {"resolv.conf", "hosts", "passwd", "group"}


def test_only_tmp_can_be_written(daemon: RunningDaemon, image: str) -> None:
    deploy(daemon, "read-only", image)
    refused = {
        path: daemon.call("read-only", {"what": "write", "path": path}) for path in ("/x", "/app/x", "/etc/passwd")
    }
    assert set(refused.values()) == {"Read-only file system"}
    assert [daemon.call("read-only", {"what": "write", "path": path}) for path in ("/tmp/x", "/dev/shm/x")] == ["", ""]


def test_a_program_may_log_to_dev_stdout(daemon: RunningDaemon, image: str) -> None:
    deploy(daemon, "logs", image)
    answer = daemon.run("logs", {"what": "log"})
    assert answer.json is None and daemon.log_of("logs", answer) == "as web servers do\n"


def test_the_sandboxs_user_and_host_are_known_in_an_image(daemon: RunningDaemon, image: str) -> None:
    deploy(daemon, "known", image)
    passwd = daemon.call("known", {"what": "read", "path": "/etc/passwd"})
    assert passwd.splitlines() == ["root:x:0:0::/:/bin/sh", "sandbox:x:1000:1000:sandbox:/tmp:/bin/sh"]
    assert daemon.call("known", {"what": "lookup"}) == "127.0.0.1"


def test_an_image_whose_etc_is_a_link_has_its_files_and_the_sandboxs(
    daemon: RunningDaemon, python: bytes, tmp_path: Path
) -> None:
    files = Files(
        plain={
            "version": "1",
            "nix/base/etc/passwd": "mine:x:7:7::/:/bin/sh\n",
            "nix/base/etc/app/settings": "of the image",
        },
        executable={"app/bootstrap": BOOTSTRAP},
        links={"etc": "/nix/base/etc"},
    )
    write_layout(tmp_path, [python, files], CONFIG)
    deploy(daemon, "linked-etc", upload(daemon, tmp_path))
    names = daemon.call("linked-etc", {"what": "read", "path": "/etc/passwd"})
    assert names.startswith("mine:x:7:7") and ":x:1000:" in names
    assert daemon.call("linked-etc", {"what": "read", "path": "/etc/app/settings"}) == "of the image"
    assert daemon.call("linked-etc", {"what": "lookup"}).startswith("127.")


def test_an_image_is_shown_by_a_function_that_runs_in_it(daemon: RunningDaemon, image: str) -> None:
    deploy(daemon, "shown", image)
    shown = daemon.manage("GET", "/images/shown")
    assert (shown.status, shown.json["digest"]) == (200, image)
    assert daemon.manage("GET", "/images/nobody").status == 404
    kept = daemon.manage("DELETE", "/images/shown")
    assert kept.status == 409 and image[:19] in kept.json["errorMessage"] and "shown" in kept.json["errorMessage"]
    assert daemon.manage("DELETE", "/images/nobody").status == 404


@pytest.mark.parametrize("network", ["host", "none"])
def test_the_runtime_api_is_reached_in_each_network(daemon: RunningDaemon, image: str, network: str) -> None:
    deploy(daemon, f"in-{network}", image, network=network)
    assert daemon.call(f"in-{network}", {"n": 2})["event"] == {"n": 2}


def test_errors_and_exits_of_a_program_are_its_functions(daemon: RunningDaemon, image: str) -> None:
    deploy(daemon, "fails", image)
    raised = daemon.run("fails", {"what": "raise"})
    assert (raised.status, raised.json["errorType"]) == (500, "KeyError")
    ended = daemon.run("fails", {"what": "exit"})
    assert (ended.status, ended.json["errorType"]) == (502, "Runtime.ExitError")
    assert daemon.call("fails", {"n": 3})["event"] == {"n": 3}


ENTRY_POINTS: Sequence[tuple[str, str]] = (
    ("/app/missing", "/app/missing does not exist there"),
    ("missing", "missing does not exist in its PATH (/app:/bin)"),
    ("/app/script", "/app/script exists, but its interpreter /nowhere/sh does not"),
    ("script", "/app/script exists, but its interpreter /nowhere/sh does not"),
    ("/app/rubbish", "/app/rubbish cannot be executed: exec format error"),
    ("/app/windows", "its interpreter /bin/sh\\r (the script's lines end with CR LF, as on Windows) does not"),
    ("", "the first word of the image's entry point is empty"),
    ("/app/plain", "/app/plain may not be executed by the sandbox's user (mode 0644)"),
    ("/closed/script", "/closed/script cannot be reached: /closed is closed to the sandbox's user (mode 0700)"),
    ("/app/below", "/app/below cannot be executed, because its interpreter /closed/sh may not be executed"),
    ("/app", "/app is a directory, not a program"),
)


@pytest.fixture(scope="module")
def broken(daemon: RunningDaemon, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image without a program that can be run."""
    programs: dict[str, bytes | str] = {"app/script": "#!/nowhere/sh\n", "app/rubbish": b"\1\2\3\4"}
    programs |= {"app/windows": "#!/bin/sh\r\necho\r\n"}
    programs |= {"closed/script": "#!/bin/sh\n", "closed/sh": b"\1\2\3\4", "app/below": "#!/closed/sh\n"}
    files = Files(plain={"app/plain": "text"}, executable=programs, closed=["closed"])
    config = {"Entrypoint": ["/app/missing"], "Env": ["PATH=/app:/bin"], "User": "1234"}
    return small(daemon, tmp_path_factory.mktemp("broken"), files, config)


@pytest.mark.parametrize(("entry_point", "words"), ENTRY_POINTS)
def test_an_entry_point_that_cannot_be_run_is_named(
    daemon: RunningDaemon, broken: str, entry_point: str, words: str
) -> None:
    deploy(daemon, "broken", broken, entrypoint=[entry_point])
    answer = daemon.run("broken")
    assert (answer.status, answer.json["errorType"]) == (500, "Runtime.InvalidEntrypoint")
    assert words in answer.json["errorMessage"]
    assert words in daemon.log_of("broken", answer)


def test_a_command_that_is_too_long_is_named(daemon: RunningDaemon, tmp_path: Path) -> None:
    config = {"Entrypoint": ["/rubbish", "x" * 140_000]}
    deploy(daemon, "long", small(daemon, tmp_path, Files(executable={"rubbish": b"\1\2\3\4"}), config))
    assert "/rubbish cannot be executed: its arguments" in daemon.run("long").json["errorMessage"]


def test_a_working_directory_that_is_not_there_is_named(daemon: RunningDaemon, image: str) -> None:
    deploy(daemon, "nowhere", image, working_directory="/nowhere")
    answer = daemon.run("nowhere").json
    assert answer["errorType"] == "Runtime.InvalidWorkingDir" and "/nowhere" in answer["errorMessage"]


def test_a_working_directory_that_is_closed_is_named(daemon: RunningDaemon, broken: str) -> None:
    deploy(daemon, "closed", broken, entrypoint=["/app/script"], working_directory="/closed")
    answer = daemon.run("closed").json
    assert answer["errorType"] == "Runtime.InvalidWorkingDir"
    assert "/closed is closed to the sandbox's user (mode 0700)" in answer["errorMessage"]


def test_an_image_with_nothing_to_run_is_refused_when_it_is_deployed(daemon: RunningDaemon, tmp_path: Path) -> None:
    empty = small(daemon, tmp_path, Files(plain={"a": "b"}), {})
    with pytest.raises(DeployFailed, match="neither ENTRYPOINT nor CMD"):
        deploy(daemon, "nothing", empty)
    with pytest.raises(DeployFailed, match="this worker has no image"):
        deploy(daemon, "nothing", f"sha256:{'0' * 64}")
    with pytest.raises(DeployFailed, match="a worker fetches images from registries"):
        deploy(daemon, "nothing", "oci:/etc")


def test_what_is_ignored_is_said_when_it_is_deployed(daemon: RunningDaemon, image: str) -> None:
    headers = {"x-sockd-overrides": json.dumps({"image": image, "python": "3.99", "readiness_path": "/ready"})}
    lines = daemon.manage("PUT", "/functions/said", b"PK\5\6" + bytes(18), headers).body.decode()
    assert "USER app is ignored" in lines and "3.99" in lines and "VOLUME /data is ignored" in lines
    assert "readiness_path is not used" in lines


def test_what_images_take_is_reported(daemon: RunningDaemon, image: str, broken: str) -> None:
    found = daemon.manage("GET", "/images/du").json
    rows = {row["digest"]: row for row in found["images"]}
    for digest in (image, broken):
        assert 0 < rows[digest]["own_bytes"] <= rows[digest]["stored_bytes"] <= found["stored_bytes"]
    command = [sys.executable, "-m", "sockd", "images", "du", "--state-dir", str(daemon.state)]
    reported = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert image.removeprefix("sha256:")[:12] in reported


def test_a_published_version_keeps_its_image(daemon: RunningDaemon, image: str, python: bytes, tmp_path: Path) -> None:
    deploy(daemon, "versioned", image)
    daemon.manage("POST", "/functions/versioned/versions", b"{}")
    write_layout(tmp_path, [python, app("2")], CONFIG)
    second = upload(daemon, tmp_path)
    deploy(daemon, "versioned", second)
    assert daemon.call("versioned")["version"] == "2"
    assert daemon.call("versioned:1")["version"] == "1"
    kept = daemon.manage("DELETE", f"/images/{image}")
    assert kept.status == 409 and "versioned" in kept.json["errorMessage"]
    back = daemon.manage("POST", "/functions/versioned/rollback", b"{}")
    assert (back.status, back.json["digest"]) == (200, image.removeprefix("sha256:")), (
        "the image's, as there is no code"
    )
    assert daemon.call("versioned")["version"] == "1"
    deploys = daemon.manage("GET", "/functions/versioned/versions").json["deploys"]
    assert {each["digest"] for each in deploys} == {each.removeprefix("sha256:") for each in (image, second)}


def test_an_image_that_no_function_needs_can_be_removed(daemon: RunningDaemon, tmp_path: Path) -> None:
    digest = small(daemon, tmp_path, Files(plain={"only": "here"}), {"Cmd": ["/only"]})
    shown = daemon.manage("GET", f"/images/{digest}").json
    assert shown["config"]["cmd"] == ["/only"] and shown["functions"] == []
    assert daemon.manage("DELETE", f"/images/{digest[:19]}").json["digest"] == digest
    assert daemon.manage("GET", f"/images/{digest}").status == 404


def test_an_image_is_unmounted_with_its_last_function(daemon: RunningDaemon, python: bytes, tmp_path: Path) -> None:
    write_layout(tmp_path, [python, app("3")], CONFIG)
    digest = upload(daemon, tmp_path)
    for name in ("one", "two"):
        deploy(daemon, name, digest)
        daemon.call(name)

    def is_mounted() -> bool:
        return bool(daemon.manage("GET", f"/images/{digest}").json["mounted"])

    assert is_mounted()
    daemon.remove("one")
    assert is_mounted() and daemon.call("two")["version"] == "3"
    since = daemon.mark
    daemon.remove("two")
    daemon.wait_line(f"image {digest[:19]} is unmounted", since=since)
    assert not is_mounted()


AS_EVER = '[sandbox]\nroots = "auto"\n'
"""A worker that takes the ways of the host's kernel also where the whole suite runs as on an older one."""


def test_a_host_that_mounts_no_images_is_reported_before_a_local_one_is_received(tmp_path: Path) -> None:
    """From a tmpfs EROFS is mounted through a loop device alone, and there is none."""
    syscalls.mount("tmpfs", str(tmp_path), "tmpfs", MountFlag.NOSUID | MountFlag.NODEV, "size=64m")
    hidden = 'mount --bind /dev/null /dev/loop-control && exec "$@"'
    try:
        daemon = RunningDaemon.start(
            tmp_path / "state", AS_EVER, command=("unshare", "--mount", "sh", "-c", hidden, "sh", *COMMAND)
        )
        try:
            answer = daemon.manage("POST", "/images?reference=oci:local", b"an archive that nobody reads")
            assert (answer.status, answer.json["errorType"]) == (503, "Images.Unavailable"), "no progress was answered"
            assert "no tmpfs" in answer.json["errorMessage"]
        finally:
            daemon.terminate()
            daemon.close()
    finally:
        syscalls.umount(str(tmp_path))
