"""The files of an image that are a function's own: those of the image's USER, else those of root, in each mode that it may run
in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.images.test_images import deploy, upload
from tests.daemon.running import RunningDaemon
from tests.support.images import oci_images
from tests.support.images.image_layouts import ASK, PYTHON, python_files, write_layout
from tests.support.older_kernel import kernel_paths

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]

NODE: dict[str, Any] = {"uid": 1000, "gid": 1001}
SEEN = """
def seen(paths):
    found = {}
    for path in paths:
        try:
            found[path] = [open(path).read(), os.stat(path).st_uid, os.stat(path).st_gid]
        except OSError as error:
            found[path] = errno.errorcode[error.errno]
    try:
        open(paths[0], "a").write(" and more")
        found["written"] = open(paths[0]).read()
    except OSError as error:
        found["written"] = errno.errorcode[error.errno]
    return found
"""
HANDLER = f"import errno, os\n{SEEN}\ndef handler(paths, context):\n    return seen(paths)\n"
PROGRAM = f"""#!{PYTHON}
import errno, http.client, json, os
{ASK}{SEEN}
while True:
    headers, event = ask("GET", "invocation/next")
    ask("POST", "invocation/" + headers["Lambda-Runtime-Aws-Request-Id"] + "/response", json.dumps(seen(json.loads(event))))
"""
OF_NODE, OF_ROOT, OF_GROUP = "/home/node/own/file", "/private/file", "/shared/file"
PATHS = [OF_NODE, OF_ROOT, OF_GROUP]


def layout(path: Path, user: str) -> Path:
    """An image with directories of mode 0700 and a USER."""
    members = [
        oci_images.member("etc/passwd", b"root:x:0:0::/root:/bin/sh\nnode:x:1000:1001::/home/node:/bin/sh\n"),
        oci_images.member("etc/group", b"root:x:0:\nnode:x:1001:\n"),
        oci_images.member("home/node/", mode=0o700, **NODE),
        oci_images.member("home/node/program", PROGRAM.encode(), mode=0o700, **NODE),
        oci_images.member("home/node/module.py", HANDLER.encode(), mode=0o600, **NODE),
        oci_images.member("home/node/own/", mode=0o700, **NODE),
        oci_images.member("home/node/own/file", b"of node", mode=0o600, **NODE),
        oci_images.member("private/", mode=0o700),
        oci_images.member("private/program", PROGRAM.encode(), mode=0o700),
        oci_images.member("private/module.py", HANDLER.encode(), mode=0o600),
        oci_images.member("private/file", b"of root", mode=0o600),
        oci_images.member("shared/", mode=0o750, gid=NODE["gid"]),
        oci_images.member("shared/file", b"of node's group", mode=0o640, gid=NODE["gid"]),
    ]
    own = "/home/node" if user else "/private"
    config = {"Entrypoint": [f"{own}/program"], "User": user, "WorkingDir": own, "Env": ["PATH=/opt/python/bin"]}
    write_layout(path, [python_files().tar(), oci_images.tar(members)], config)
    return path


MODES: dict[str, dict[str, Any]] = {
    "program": {},
    "zygote": {"handler": "module.handler", "runtime": "python"},
    "writable": {"writable_root": True},
    "without-network": {"network": "none"},
}


def reported(daemon: RunningDaemon, mode: str, image: str, name: str) -> Any:
    deploy(daemon, name, image, **MODES[mode])
    answer = daemon.run(name, PATHS)
    assert answer.status == 200, (answer, daemon.logs(name))
    return answer.json


@pytest.fixture(scope="module", params=kernel_paths())
def config(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def images(daemon: RunningDaemon, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Digests by USER."""
    return {user: upload(daemon, layout(tmp_path_factory.mktemp("image"), user)) for user in ("node", "")}


@pytest.mark.parametrize("mode", MODES)
def test_files_of_user_are_the_functions_own(daemon: RunningDaemon, images: dict[str, str], mode: str) -> None:
    found = reported(daemon, mode, images["node"], f"node-{mode}")
    written = found.pop("written")
    assert found == {OF_NODE: ["of node", 1000, 1000], OF_ROOT: "EACCES", OF_GROUP: ["of node's group", 65534, 1000]}
    assert written == ("of node and more" if mode == "writable" else "EROFS")


@pytest.mark.parametrize("mode", MODES)
def test_files_of_root_are_the_functions_own_without_a_user(
    daemon: RunningDaemon, images: dict[str, str], mode: str
) -> None:
    found = reported(daemon, mode, images[""], f"root-{mode}")
    assert found == {
        OF_NODE: "EACCES",
        OF_ROOT: ["of root", 1000, 1000],
        OF_GROUP: ["of node's group", 1000, 65534],
        "written": "EACCES",
    }


def test_zygotes_serve_the_handler_of_a_user(daemon: RunningDaemon, images: dict[str, str]) -> None:
    deploy(daemon, "served", images["node"], **MODES["zygote"])
    daemon.run_learned("served", PATHS)
    assert [node for node in daemon.nodes() if node["interpreter"].startswith("image:")]


def test_a_user_that_the_image_does_not_have_is_said(daemon: RunningDaemon, tmp_path: Path) -> None:
    image = upload(daemon, layout(tmp_path, "nobody-knows"))
    headers = {"x-sockd-overrides": json.dumps({"image": image})}
    lines = daemon.manage("PUT", "/functions/unknown", b"PK\5\6" + bytes(18), headers).body.decode()
    assert "USER nobody-knows is ignored, as the image's /etc/passwd or /etc/group does not have it" in lines
