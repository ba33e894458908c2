"""Functions that may change their image's files: what they can do, what nobody else sees of it, and what they still cannot."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sockd.isolation.roots.owner_maps import MOST_MAPS
from tests.daemon.images.test_images import deploy, upload
from tests.daemon.kernel_view import open_fds
from tests.daemon.running import DeployFailed, RunningDaemon
from tests.support.cases import case
from tests.support.images import oci_images
from tests.support.images.image_layouts import ASK, PYTHON, python_files, write_layout
from tests.support.older_kernel import kernel_paths

pytestmark = pytest.mark.root

BOOTSTRAP = f"""#!{PYTHON}
import errno, http.client, json, os, stat, sys
{ASK}while True:
    headers, event = ask("GET", "invocation/next")
    scope = dict(globals())
    try:
        exec(json.loads(event), scope)
        answer = scope.get("answer")
    except OSError as error:
        answer = "error " + errno.errorcode[error.errno]
    ask("POST", "invocation/" + headers["Lambda-Runtime-Aws-Request-Id"] + "/response", json.dumps(answer))
"""
OTHERS = 33


@pytest.fixture(scope="module", params=kernel_paths())
def config(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def image(daemon: RunningDaemon, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image whose program runs the event as Python; its digest."""
    files = [
        oci_images.member("app/bootstrap", BOOTSTRAP.encode(), mode=0o755),
        oci_images.member("etc/conf", b"of the image"),
        oci_images.member("etc/secret", b"of root", mode=0o600),
        oci_images.member("usr/local/bin/tool", b"#!/bin/sh\n", mode=0o755),
        oci_images.member("usr/local/lib/a", b"a"),
        oci_images.member("usr/local/lib/b", b"b"),
        oci_images.member("srv/of-others", b"others", uid=OTHERS, gid=OTHERS),
        oci_images.member("big", b"\1" * (6 << 20)),
    ]
    path = tmp_path_factory.mktemp("image")
    write_layout(path, [python_files().tar(), oci_images.tar(files)], {"Entrypoint": ["/app/bootstrap"]})
    return upload(daemon, path)


class Function:
    """A function with a writable root, or without."""

    def __init__(self, daemon: RunningDaemon, image: str, name: str, **settings: Any) -> None:
        self.daemon, self.name = daemon, name
        deploy(daemon, name, image, **{"network": "none", "writable_root": True, **settings})

    def run(self, source: str) -> Any:
        return self.daemon.call(self.name, source)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("open('/etc/conf', 'w').write('new'); answer = open('/etc/conf').read()", "new"),
        ("open('/etc/conf', 'a').write(' and more'); answer = open('/etc/conf').read()", "of the image and more"),
        ("os.remove('/etc/conf'); answer = os.path.exists('/etc/conf')", False),
        ("os.rename('/etc/conf', '/etc/other'); answer = sorted(os.listdir('/etc'))[:2]", ["group", "hosts"]),
        (
            "os.rename('/usr/local', '/usr/global'); answer = open('/usr/global/lib/a').read(), os.listdir('/usr')",
            ["a", ["global"]],
        ),
        (
            "import shutil; shutil.rmtree('/usr/local/lib'); os.mkdir('/usr/local/lib'); answer = os.listdir('/usr/local/lib')",
            [],
        ),
        ("os.chmod('/etc/conf', 0o640); answer = oct(os.stat('/etc/conf').st_mode)", "0o100640"),
        ("os.link('/etc/conf', '/etc/linked'); answer = open('/etc/linked').read()", "of the image"),
        ("os.symlink('conf', '/etc/soft'); answer = open('/etc/soft').read()", "of the image"),
        ("os.truncate('/big', 10); answer = os.stat('/big').st_size", 10),
        ("os.utime('/etc/conf', (1, 2)); answer = os.stat('/etc/conf').st_mtime", 2),
        ("os.setxattr('/etc/conf', 'user.note', b'1'); answer = os.listxattr('/etc/conf')", ["user.note"]),
        ("answer = open('/etc/secret').read(), os.stat('/etc/secret').st_uid", ["of root", 1000]),
        ("os.remove('/srv/of-others'); answer = os.listdir('/srv')", []),
        *(
            (
                f"os.makedirs('{path}/d'); open('{path}/d/f', 'w').write('x'); answer = os.stat('{path}/d/f').st_uid",
                1000,
            )
            for path in ("", "/etc", "/usr/local", "/opt/python/lib")
        ),
    ],
)
def test_files_of_the_image_can_be_changed(daemon: RunningDaemon, image: str, source: str, expected: Any) -> None:
    assert Function(daemon, image, "changes", reuse_sandbox=False).run(source) == expected


def test_changes_are_seen_by_the_sandbox_that_made_them_only(daemon: RunningDaemon, image: str) -> None:
    change = "open('/etc/conf', 'w').write('changed'); os.remove('/usr/local/lib/a'); open('/new', 'w').close()"
    see = "answer = open('/etc/conf').read(), sorted(os.listdir('/usr/local/lib')), os.path.exists('/new')"
    untouched, changed = ["of the image", ["a", "b"], False], ["changed", ["b"], True]
    one, two = Function(daemon, image, "one"), Function(daemon, image, "two")
    usual = Function(daemon, image, "usual", writable_root=False)
    one.run(change)
    assert [each.run(see) for each in (one, two, usual)] == [changed, untouched, untouched]
    daemon.run("one", "os._exit(1)")  # the sandbox ends
    assert one.run(see) == untouched
    assert usual.run("open('/new', 'w')") == "error EROFS"


@case(
    "K25",
    "set security.selinux, and other attributes for security, of a file of the writable root",
    expect="refused, or seen by that sandbox alone and gone with it",
)
def test_labels_of_selinux_are_seen_by_the_sandbox_that_set_them_only(daemon: RunningDaemon, image: str) -> None:
    """A kernel with SELinux and without a policy lets a file's owner set them; other attributes for security it does not."""
    one, two = Function(daemon, image, "labels"), Function(daemon, image, "no-labels")
    names = ("selinux", "SMACK64", "capability", "ima", "other")
    for name in names:
        attempt = f"os.setxattr('/etc/conf', 'security.{name}', b'label'); answer = 'ok'"
        assert one.run(attempt) in (("ok", "error EPERM") if name == "selinux" else ("error EPERM", "error EINVAL")), (
            name
        )
    assert two.run("answer = os.listxattr('/etc/conf')") == []
    daemon.run("labels", "os._exit(1)")
    assert one.run("answer = os.listxattr('/etc/conf')") == []


def test_two_sandboxes_of_one_function_at_once_have_changes_of_their_own(daemon: RunningDaemon, image: str) -> None:
    function = Function(daemon, image, "at-once", concurrency=2)
    source = "import time; open('/n', 'a').write('x'); time.sleep(0.5); answer = open('/n').read()"
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(function.run, [source] * 2)) == ["x", "x"]


FILL = """
def fill(path, mb):
    with open(path, 'wb') as file:
        for _ in range(mb):
            file.write(bytes(1 << 20))
"""


def test_one_limit_holds_for_changes_and_tmp_together(daemon: RunningDaemon, image: str) -> None:
    function = Function(daemon, image, "limited", tmp_mb=8, tmp_inodes=100, reuse_sandbox=False)
    assert function.run(f"{FILL}\nfill('/a', 5); fill('/tmp/a', 5)") == "error ENOSPC"
    assert function.run(f"{FILL}\nfill('/tmp/a', 5); fill('/usr/a', 5)") == "error ENOSPC"
    assert function.run(f"{FILL}\nfill('/usr/a', 5); os.remove('/usr/a'); fill('/tmp/a', 5); answer = 'fits'") == "fits"
    assert function.run("for n in range(100): open(f'/etc/{n}', 'w').close()") == "error ENOSPC"
    assert function.run("for n in range(100): os.link('/etc/conf', f'/etc/{n}')") == "error ENOSPC"
    assert function.run("for n in range(100): open(f'/x', 'w').close(); os.remove('/x')\nanswer = 'fits'") == "fits"


def test_a_file_that_does_not_fit_stays_the_images(daemon: RunningDaemon, image: str) -> None:
    function = Function(daemon, image, "too-big", tmp_mb=4, reuse_sandbox=False)
    source = "try:\n    open('/big', 'r+b')\nexcept OSError as error:\n    refused = errno.errorcode[error.errno]\n"
    source += "answer = refused, os.stat('/big').st_size, open('/big', 'rb').read() == bytes([1]) * (6 << 20)"
    assert function.run(source) == ["ENOSPC", 6 << 20, True]


def test_attributes_are_the_sandboxes_memory_and_end_with_it(daemon: RunningDaemon, image: str) -> None:
    """The owner of a file may set security.selinux where SELinux is not active; where it is active, its policy decides."""
    function = Function(daemon, image, "labels", memory_mb=64, tmp_mb=64, timeout_s=30)
    label = "os.setxattr('/usr/local', 'security.selinux', b'x')\nfor number in range(2000):\n"
    label += (
        "    name = f'/tmp/{number}'; open(name, 'w').close(); os.setxattr(name, 'security.selinux', bytes(60_000))"
    )
    answer = daemon.run("labels", label)
    if answer.status == 200:
        assert answer.json in ("error EPERM", "error EACCES", "error EINVAL"), answer.body
    else:
        assert answer.json["errorType"] == "Sandbox.OutOfMemory", answer.body
    assert function.run("answer = os.listdir('/tmp'), os.listxattr('/usr/local')") == [[], []]


def test_changes_are_the_sandboxes_memory(daemon: RunningDaemon, image: str) -> None:
    Function(daemon, image, "greedy", memory_mb=128, tmp_mb=1024)
    answer = daemon.run("greedy", f"{FILL}\nfill('/usr/local/large', 200)")
    assert answer.json["errorType"] == "Sandbox.OutOfMemory", answer.body
    Function(daemon, image, "enough", memory_mb=512, tmp_mb=1024)
    assert daemon.call("enough", f"{FILL}\nfill('/usr/local/large', 200); answer = os.stat('/usr/local/large').st_size")


HOSTILE = [
    # Marks of overlayfs: a removed file, and a directory that hides the one below.
    ("os.mknod('/etc/forged', stat.S_IFCHR | 0o600, os.makedev(0, 0))", "error EPERM"),
    (
        "os.mknod('/tmp/forged', stat.S_IFCHR | 0o600, os.makedev(0, 0)); os.rename('/tmp/forged', '/etc/forged')",
        ("error EXDEV", "error EPERM"),
    ),
    ("os.setxattr('/usr/local', 'trusted.overlay.opaque', b'y')", ("error EPERM", "error EOPNOTSUPP")),
    ("os.setxattr('/usr/local', 'trusted.overlay.redirect', b'/etc')", ("error EPERM", "error EOPNOTSUPP")),
    (
        "os.setxattr('/usr', 'user.overlay.opaque', b'y'); os.setxattr('/usr', 'user.overlay.redirect', b'/etc')\n"
        "answer = os.listdir('/usr'), sorted(os.listdir('/usr/local'))",
        [["local"], ["bin", "lib"]],
    ),
    (
        "open('/etc/w', 'w').close(); os.setxattr('/etc/w', 'user.overlay.whiteout', b''); answer = 'w' in os.listdir('/etc')",
        True,
    ),
    ("os.setxattr('/etc/conf', 'security.capability', b'x')", ("error EINVAL", "error EPERM")),
    # Devices and programs with more rights.
    ("os.mknod('/etc/null', stat.S_IFCHR | 0o666, os.makedev(1, 3))", "error EPERM"),
    ("os.mknod('/etc/disk', stat.S_IFBLK | 0o666, os.makedev(254, 0))", "error EPERM"),
    ("os.chown('/etc/conf', 0, 0)", ("error EPERM", "error EINVAL")),
    ("os.chmod('/srv/of-others', 0o777)", "error EPERM"),
    ("open('/srv/of-others', 'a')", "error EACCES"),
    (
        "answer = [bool(os.statvfs(path).f_flag & os.ST_NOSUID and os.statvfs(path).f_flag & 4) for path in ('/', '/tmp')]",
        [True, True],
    ),
    # Other ways to where the changes are kept, and out of the root.
    (
        "answer = [sorted(os.listdir(path)) == sorted(os.listdir('/'))\n"
        "    for path in ('/..', '/tmp/..', '/proc/self/root', '/proc/self/root/..', '/proc/self/root/tmp/..')]",
        [True] * 5,
    ),
    ("answer = [os.path.exists(name) for name in ('/upper', '/work', '/tmp/upper', '/tmp/../work')]", [False] * 4),
    ("answer = 'upperdir' in open('/proc/self/mountinfo').read()", False),
    ("os.link('/etc/conf', '/tmp/conf')", "error EXDEV"),
    ("os.symlink('/proc/self/root/../../etc/hostname', '/x'); answer = os.path.exists('/x')", False),
    # What stands over the image.
    *((f"open('/etc/{name}', 'a')", "error EACCES") for name in ("hosts", "resolv.conf", "passwd", "group")),
    ("open('/dev/new', 'w')", "error EROFS"),
]


@pytest.mark.parametrize(("source", "expected"), HOSTILE)
def test_nothing_else_can_be_changed(daemon: RunningDaemon, image: str, source: str, expected: Any) -> None:
    answer = Function(daemon, image, "hostile", reuse_sandbox=False).run(source)
    assert answer in expected if isinstance(expected, tuple) else answer == expected


def test_a_program_with_a_set_user_id_bit_runs_as_its_caller(daemon: RunningDaemon, image: str) -> None:
    source = f"import subprocess, shutil; shutil.copy('{PYTHON}', '/opt/python/bin/setuid')\n"
    source += "os.chmod('/opt/python/bin/setuid', 0o6755)\n"
    source += "answer = subprocess.check_output(['/opt/python/bin/setuid', '-c', 'import os; print(os.geteuid())'], text=True)"
    assert Function(daemon, image, "setuid").run(source) == "1000\n"


def test_a_sandbox_that_takes_its_root_apart_harms_itself_only(daemon: RunningDaemon, image: str) -> None:
    function = Function(daemon, image, "apart")
    source = (
        "for path in ('/dev', '/proc', '/tmp', '/etc/hosts', '/etc/resolv.conf', '/etc/passwd', '/etc/group', '/etc'):\n"
        "    try:\n        os.rename(path, path + '-gone')\n        os.rmdir(path + '-gone')\n    except OSError: pass\n"
        "answer = 'did'"
    )
    assert function.run(source) == "did"
    daemon.run("apart", "os._exit(1)")
    see = "answer = [*map(os.path.exists, ('/dev/null', '/proc/self', '/etc/hosts')), open('/etc/conf').read()]"
    assert function.run(see) == [True, True, True, "of the image"]
    assert Function(daemon, image, "beside", writable_root=False).run(see) == [True, True, True, "of the image"]


def test_nothing_of_a_writable_root_stays_behind(daemon: RunningDaemon, image: str) -> None:
    def held() -> int:
        return sum(
            target in ("/", "/upper", "/work", "/tmp") or target.startswith("mnt:") for target in open_fds(daemon.pid)
        )

    function = Function(daemon, image, "stays", reuse_sandbox=False)
    function.run("open('/etc/conf', 'a').write('x')")
    roots, table = daemon.when(held), Path(f"/proc/{daemon.pid}/mountinfo").read_text()
    for _ in range(8):
        function.run("open('/etc/conf', 'a').write('x')")
    daemon.when(lambda: held() <= roots)
    assert Path(f"/proc/{daemon.pid}/mountinfo").read_text() == table
    assert "- overlay " not in table
    assert sum(target.startswith("user:") for target in open_fds(daemon.pid)) <= MOST_MAPS


def test_the_setting_changes_without_a_deploy_and_goes_with_an_image(daemon: RunningDaemon, image: str) -> None:
    function = Function(daemon, image, "switched", writable_root=False)
    write = "open('/etc/conf', 'w').write('x'); answer = 'written'"
    assert function.run(write) == "error EROFS"
    for value, expected in ((True, "written"), (False, "error EROFS")):
        changed = daemon.manage("PATCH", "/functions/switched/settings", json.dumps({"writable_root": value}))
        assert changed.status == 200, changed.body
        assert function.run(write) == expected
    with pytest.raises(DeployFailed, match="writable_root: goes with image, and this function has none"):
        daemon.deploy("without", "def f(event): return event", writable_root=True)


def test_a_handler_is_then_a_program_and_the_deploy_says_so(daemon: RunningDaemon, image: str) -> None:
    settings = {"image": image, "writable_root": True, "handler": "app:f", "runtime": "python", "command": ["app.f"]}
    headers = {"x-sockd-overrides": json.dumps(settings)}
    lines = daemon.manage("PUT", "/functions/then", b"PK\5\6" + bytes(18), headers).body.decode()
    assert "runs as a program: it is a program (writable_root)" in lines
