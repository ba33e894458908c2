"""Images at the command line: what a deploy shows, and which wrong ones are refused before anything is sent."""

from __future__ import annotations

import errno
import json
import shlex
import socket
import sys
import tarfile
import threading
from pathlib import Path

import pytest

from sockd.client.console import output
from sockd.client.console.client import Management
from sockd.client.console.image_uploads import imported
from tests.client.cli.pty_process import Terminal
from tests.client.cli.serving import REPOSITORY, Run, Served

STEPS = (
    *("fetching 2 layers: 1 MB", "fetching 2 layers: 14 MB", "merging layers"),
    *(f"writing the file system: {number} of 90 MB" for number in range(90)),
)


def test_a_deploy_of_an_image_without_code_packs_and_sends_nothing(run: Run, served: Served, tmp_path: Path) -> None:
    done = run("deploy", "in-image", "--image", "registry.example.com/app:1")
    assert done.returncode == 0, done.stderr
    assert "packing" not in done.stderr and "sending" not in done.stderr
    assert served.worker.deployed["in-image"][0] == []
    code = tmp_path / "with-code"
    code.mkdir()
    (code / "f.py").touch()
    done = run("deploy", str(code), "--image", "registry.example.com/app:1")
    assert "packing" in done.stderr and "sending" in done.stderr


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ("", ("--image", "registry.example.com/app:1")),
        ("memory_mb = 256\n", ("--image", "registry.example.com/app:1")),
        ('image = "registry.example.com/app:1"\n', ()),
    ],
)
def test_of_an_images_directory_only_the_settings_are_sent(
    run: Run, served: Served, tmp_path: Path, settings: str, options: tuple[str, ...]
) -> None:
    directory = tmp_path / "function"
    (directory / "data").mkdir(parents=True)
    (directory / "data" / "link").symlink_to("/nowhere")  # what could not be deployed as code
    if settings:
        (directory / "sockd.toml").write_text(settings)
    done = run("deploy", str(directory), *options)
    assert done.returncode == 0, done.stderr
    assert served.worker.deployed["function"][0] == (["sockd.toml"] if settings else [])


def test_a_worker_that_stops_meanwhile_is_asked_for_by_its_directory(tmp_path: Path) -> None:
    management = Management(tmp_path / "a worker's")
    with pytest.raises(output.Failure, match="stopped before") as caught:
        management.result(iter([{"progress": "importing"}]), lambda text: None)
    option = shlex.quote(f"{tmp_path}/a worker's")
    assert caught.value.fix.endswith(f"sockd status --state-dir {option}")


@pytest.mark.parametrize("settings", ["memory_mb = 256\n", "image = \n"])
def test_a_directory_whose_settings_name_no_image_is_sent_whole(
    run: Run, served: Served, tmp_path: Path, settings: str
) -> None:
    directory = tmp_path / "function"
    directory.mkdir()
    (directory / "f.py").touch()
    (directory / "sockd.toml").write_text(settings)
    run("deploy", str(directory))
    assert sorted(served.worker.deployed["function"][0]) == ["f.py", "sockd.toml"]


def test_each_stage_is_one_line_where_no_one_looks(capsys: pytest.CaptureFixture[str]) -> None:
    with output.progress("deploying f") as show:
        for text in STEPS:
            show(text)
    assert capsys.readouterr().err.splitlines() == [
        "deploying f",
        "fetching 2 layers",
        "merging layers",
        "writing the file system",
    ]


def test_all_stages_are_one_line_of_a_terminal(served: Served) -> None:
    program = (
        "from sockd.client.console import output\n"
        f"with output.progress('deploying f') as show: [show(text + ' ' * 9 + 'and so on' * 9) for text in {STEPS!r}]\n"
        "print('END')"
    )
    terminal = Terminal(
        [sys.executable, "-c", program], {**served.environment(), "PYTHONPATH": str(REPOSITORY)}, columns=60
    )
    try:
        shown = terminal.wait_for(b"END")
    finally:
        terminal.close()
    assert b"writing the file system: 89" in shown and shown.count(b"\n") <= 2, "the line, and END"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), "is not an OCI layout"),
        (lambda path: path.touch(), "is empty"),
    ],
    ids=["missing", "directory", "empty"],
)
@pytest.mark.parametrize("kind", ["oci", "oci-archive", "docker-archive"])
def test_a_local_image_that_is_none_is_refused_at_once(
    run: Run, tmp_path: Path, kind: str, make: object, words: str
) -> None:
    path = tmp_path / "image"
    make(path)  # type: ignore[operator]
    done = run("deploy", "f", "--image", f"{kind}:{path}")
    assert done.returncode == output.USAGE and f"error: {str(path)!r} {words}" in done.stderr, done.stderr
    assert "sending" not in done.stderr


@pytest.mark.parametrize("command", [("deploy", "f", "--image"), ("images", "add")])
@pytest.mark.parametrize("name", ["layout", "Layout"])
def test_a_layout_without_its_oci_is_no_image_of_a_registry(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], name: str
) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "oci-layout").write_text("{}")
    monkeypatch.chdir(tmp_path)
    done = run(*command, name)
    assert done.returncode == output.USAGE and f"fix: --image oci:{name}" in done.stderr, done.stderr


def test_a_path_that_does_not_exist_is_no_functions_name(run: Run, tmp_path: Path) -> None:
    done = run("deploy", str(tmp_path / "mistyped"), "--image", "registry.example.com/app:1")
    assert done.returncode == output.USAGE and "does not exist" in done.stderr


def test_a_command_that_fixes_a_name_can_be_copied(run: Run) -> None:
    done = run("deploy", "my fn", "--image", "registry.example.com/app:1")
    assert done.returncode == output.USAGE and "sockd deploy 'my fn' --name my-fn" in done.stderr


def test_a_type_of_error_is_shown_to_programs_only(run: Run) -> None:
    plain, as_json = run("rm", "nothing"), run("rm", "nothing", "--json")
    assert plain.returncode == as_json.returncode == output.NOT_FOUND
    assert "error:" in plain.stderr and "why:" not in plain.stderr and "Exception" not in plain.stderr
    assert "ResourceNotFoundException" in as_json.stderr


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    """More than a socket buffers."""
    directory = tmp_path / "layout"
    directory.mkdir()
    (directory / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    (directory / "blob").write_bytes(bytes(8 << 20))
    return directory


def test_why_a_worker_refuses_an_image_is_heard_before_all_of_it_is_sent(layout: Path, tmp_path: Path) -> None:
    error = json.dumps({"errorType": "InsufficientStorageException", "errorMessage": "the disk is full"}).encode()
    head = b"HTTP/1.1 507 Insufficient Storage\r\ncontent-length: %d\r\n\r\n" % len(error)

    def refuse() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(head + error)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "sockd.sock"))
        listener.listen()
        thread = threading.Thread(target=refuse)
        thread.start()
        with pytest.raises(output.Failure, match="the disk is full"):
            imported(f"oci:{layout}", Management(tmp_path), lambda _: None)
        thread.join()


def test_a_layout_that_cannot_be_read_is_an_error(
    layout: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add(archive: tarfile.TarFile, *_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "blob")

    monkeypatch.setattr(tarfile.TarFile, "add", add)
    with pytest.raises(output.Failure, match="cannot be read") as raised:
        imported(f"oci:{layout}", Management(served.state_dir), lambda _: None)
    assert "Permission denied" in raised.value.why
