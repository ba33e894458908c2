"""`sockd doctor` on this host, and on hosts that lack something, as far as a real process can be made to lack it."""

from __future__ import annotations

import errno
import glob
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

import sockd
from sockd.base.config import ImagesConfig
from sockd.base.errors import SandboxFailed
from sockd.client.cli.doctor import cgroup_limits, images, networks, probes, report
from sockd.client.cli.doctor import checks as look
from sockd.client.cli.doctor.effects import effects
from sockd.client.cli.doctor.image_store import image_key, image_store
from sockd.client.cli.doctor.networks import NAME, private_networks
from sockd.client.cli.doctor.report import Check
from sockd.client.console.client import Management
from sockd.linux.cgroups.hierarchies import Hierarchies
from sockd.linux.erofs import mounting
from sockd.linux.network import network_namespaces
from sockd.linux.ways import Release, Ways
from tests.support.networks.network_lab import lab
from tests.support.nobody import NOBODY, needs_nobody

ROOT = Path(sockd.__file__).parents[1]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

FILTERED = """
import ctypes, os, struct, sys

steps = STEPS
program = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *step) for step in steps))
filter = struct.pack("H6xQ", len(steps), ctypes.addressof(program))
if ctypes.CDLL(None).prctl(22, 2, filter, 0, 0) != 0:  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
    sys.exit("no filter")
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Runs a program under a filter of these steps."""
WITHOUT_PIVOT_ROOT = FILTERED.replace(
    "STEPS", "[(0x20, 0, 0, 0), (0x15, 0, 1, 155), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]"
)
"""Docker's default filter in what matters here: pivot_root (155) is refused."""
WITHOUT_TID_ADDRESS = FILTERED.replace(
    "STEPS",
    "[(0x20, 0, 0, 0), (0x15, 0, 3, 157), (0x20, 0, 0, 16), (0x15, 0, 1, 40), "
    "(0x06, 0, 0, 0x00050016), (0x06, 0, 0, 0x7FFF0000)]",
)
"""A kernel without CONFIG_CHECKPOINT_RESTORE: prctl (157) knows no PR_GET_TID_ADDRESS (40)."""

DROPPING = """
table ip filter {
    chain FORWARD { type filter hook forward priority filter; policy drop; }
    chain INPUT { type filter hook input priority filter; policy drop; }
}
"""
"""What Docker leaves at the forward hook."""


class OlderWays(Ways):
    """What is found on an older kernel."""

    @classmethod
    def find(cls, kernel: Release | None = None, roots: str = "auto") -> Ways:
        return Ways.find((6, 1))


def run(code: str, *, prefix: tuple[str, ...] = ()) -> Check:
    """The check that `code` makes, in a process of its own started by `prefix`."""
    imported = "checks, images, networks, report"
    imports = f"import json; from pathlib import Path; from sockd.client.cli.doctor import {imported}"
    script = f"{imports}; print(json.dumps(report.as_dicts([{code}])))"
    command = [*prefix, sys.executable, "-c", script]
    child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return Check(**json.loads(child.stdout)[0])


@needs_root
@pytest.mark.alone
def test_this_host_can_run_sockd_and_nothing_stays_behind(tmp_path: Path) -> None:
    mounts = Path("/proc/self/mountinfo").read_text()
    fds = os.listdir("/proc/self/fd")
    found = report.run_checks(tmp_path)
    assert [check for check in found if check.ok is False] == []
    assert len({check.name for check in found}) == len(found)
    assert Path("/proc/self/mountinfo").read_text() == mounts
    assert len(os.listdir("/proc/self/fd")) == len(fds)
    # Unlike pathlib, glob passes over cgroups of others that end meanwhile.
    assert not glob.glob(f"/sys/fs/cgroup/**/sockd-doctor-*{os.getpid()}*", recursive=True)


@needs_nobody
def test_one_that_is_not_root_learns_how_to_become_it() -> None:
    check = run("checks.privileges()", prefix=NOBODY)
    assert check.ok is False
    assert check.fix.startswith("sudo ")


@needs_root
def test_a_missing_capability_is_named() -> None:
    check = run("checks.privileges()", prefix=("setpriv", "--bounding-set=-mknod,-sys_chroot"))
    assert check.ok is False
    assert "CAP_SYS_CHROOT, CAP_MKNOD" in check.found
    assert "--cap-add MKNOD" in check.fix


@needs_root
def test_a_probe_that_is_refused_says_why() -> None:
    check = run("checks.roots()", prefix=("setpriv", "--bounding-set=-sys_admin"))
    assert check.ok is False
    assert "Operation not permitted" in check.found
    assert check.fix


@needs_root
def test_a_host_whose_functions_cannot_be_kept_off_our_ports_is_reported_in_one_line() -> None:
    assert run("checks.socket_guards()").ok
    check = run("checks.socket_guards()", prefix=("setpriv", "--bounding-set=-bpf,-net_admin,-sys_admin"))
    assert check.ok is None
    assert check.found.startswith(look.UNGUARDED) and "Operation not permitted" in check.found
    assert check.fix == look.GUARDS_FIX


@needs_root
def test_a_host_that_does_not_check_packets_is_reported_in_one_line() -> None:
    assert run("checks.packet_guard()").ok
    check = run("checks.packet_guard()", prefix=("setpriv", "--bounding-set=-bpf,-net_admin,-sys_admin"))
    assert check.ok is None
    assert check.found.startswith(look.UNCHECKED) and "Operation not permitted" in check.found
    assert check.fix == look.PACKETS_FIX


@needs_root
def test_a_kernel_that_cannot_tell_the_hosts_addresses_in_a_rule_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with lab():
        assert networks.private_networks().ok
        monkeypatch.setattr(networks, "judges_by_destination", lambda: False)
        check = networks.private_networks()
    assert check.ok is None and "no port that the host translates is reached" in check.found
    assert "CONFIG_NFT_FIB_IPV4" in check.fix


@needs_root
def test_a_filter_that_keeps_us_among_the_hosts_files_is_reported() -> None:
    check = run("checks.host_files()", prefix=(sys.executable, "-c", WITHOUT_PIVOT_ROOT))
    assert check.ok is False
    assert "pivot_root: Operation not permitted" in check.found
    assert "seccomp=unconfined" in check.fix


@needs_root
def test_a_host_without_fuse_learns_that_images_are_written_whole() -> None:
    without = ("unshare", "--mount", "sh", "-c", 'mount --bind /dev/null /dev/fuse && exec "$@"', "sh")
    check = run("images.images_on_demand()", prefix=without)
    assert check.ok is None
    assert check.found.startswith("images are written to the disk as a whole: ")
    assert "/dev/fuse" in check.fix


@needs_root
def test_a_kernel_that_does_not_send_requests_again_is_not_asked_to_load_fuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "probed", lambda name, probe, fix: Check(name, False, probes.NO_RESEND, fix))
    check = images.images_on_demand()
    assert check.ok is None and check.found.startswith(
        "images are read on demand, but not across an end of the process"
    )
    assert check.fix == "use Linux 6.9 or newer"


@needs_root
def test_a_kernel_without_erofs_learns_that_it_has_no_images(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(path: str, *, by_loop: bool) -> int:
        raise SandboxFailed(mounting._REASONS[errno.ENODEV])

    monkeypatch.setattr(mounting, "mount_image", refuse)
    check = images.container_images(tmp_path)
    assert check.ok is None and check.found == "not for functions: this kernel has no EROFS (CONFIG_EROFS_FS)"
    assert "CONFIG_BLK_DEV_LOOP" in check.fix


@needs_root
def test_an_error_of_several_lines_is_reported_by_its_first(tmp_path: Path) -> None:
    nft = tmp_path / "nft"
    nft.write_text("#!/bin/sh\necho 'Error: Could not process rule: Not supported' >&2\necho '^^^^' >&2\nexit 1\n")
    nft.chmod(0o755)
    with_this = ("unshare", "--mount", "sh", "-c", f'mount --bind {nft} "$(command -v nft)" && exec "$@"', "sh")
    check = run('checks.probed("nft", "private_network", "")', prefix=with_this)
    assert check.ok is False
    assert "Could not process rule: Not supported" in check.found and "^^^^" not in check.found


def test_a_machine_that_sockd_was_hardly_tried_on_learns_how_to_try_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for machine, ok, fix in (
        ("x86_64", True, ""),
        ("aarch64", None, "sockd selftest"),
        ("riscv64", False, "x86_64 or aarch64"),
    ):
        monkeypatch.setattr("platform.machine", lambda machine=machine: machine)
        check = look.kernel()
        assert check.ok is ok and fix in check.fix and check.found.endswith(machine), check


@needs_root
def test_a_kernel_that_does_not_tell_where_thread_ids_are_forks_all_the_same() -> None:
    assert look.forks().ok
    assert run("checks.forks()", prefix=(sys.executable, "-c", WITHOUT_TID_ADDRESS)).ok


@needs_root
def test_a_state_directory_on_a_tmpfs_has_its_images_on_loop_devices() -> None:
    check = run('images.container_images(Path("/dev/shm/none"))')
    assert check.ok and check.found.startswith("EROFS through loop devices; ") and "no tmpfs" in check.found


@needs_root
def test_every_probe_works_here() -> None:
    for name in probes.PROBES:
        check = look.probed(name, name, "")
        assert check.ok, check


@needs_root
def test_an_older_kernel_learns_its_ways_and_what_they_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "Ways", OlderWays)
    for check in (look.roots(), look.proc(), look.exits()):
        assert check.ok is None and check.found.endswith("(sandbox.kernel)"), check
        assert check.fix.startswith("use Linux 6.1")
    assert look.roots().found.startswith("a mount namespace for each sandbox; 0.1 ms at each start")


def test_every_effect_on_the_host_is_listed_with_its_end_and_its_switch() -> None:
    found = {check.name.removeprefix("effect: "): check.found for check in effects()}
    assert list(found) == ["favordynmods", "real-time threads", "uids", "cgroups", "links", "bytecode"]
    for text in found.values():
        assert "; undone by " in text and "; switch: " in text
    table = (ROOT / "SECURITY.md").read_text().partition("## What sockd changes on the host")[2].partition("## ")[0]
    for switch in ("latency.favordynmods", "latency.hrtick", "sandbox.base_uid"):
        assert any(switch in text for text in found.values()) and switch in table


@needs_root
def test_a_host_without_nft_or_forwarding_has_the_fix_and_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    with lab() as world:
        assert private_networks() == Check(NAME, True, "veth, nf_tables and forwarding work")
        with network_namespaces.entered(world.host):
            network_namespaces.set_sysctl("ipv4/ip_forward", 0)
            check = private_networks()
            assert check.ok is None and check.fix.startswith("sysctl -w net.ipv4.ip_forward=1")
            monkeypatch.setattr(networks, "have_nft", lambda: False)
            assert private_networks().fix == "apt-get install nftables"


def test_a_worker_that_has_them_switched_off_is_no_worker_with_private_networks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert not networks.are_switched_off(tmp_path), "no worker runs there"
    monkeypatch.setattr(Management, "get", lambda *_: {"networks": {"private": False}})
    check = private_networks(tmp_path)
    assert (check.ok, check.name) == (None, NAME) and check.found.startswith("switched off")
    assert "private = true" in check.fix


@needs_root
def test_a_foreign_chain_that_drops_what_is_forwarded_is_named_and_its_fix_works() -> None:
    with lab():
        subprocess.run(["nft", "-f", "-"], input=DROPPING, text=True, check=True)
        check = private_networks()
        assert check.ok is None and "ip filter FORWARD drops" in check.found
        subprocess.run(check.fix.partition("  #")[0], shell=True, check=True)
        rules = subprocess.run(["nft", "list", "table", "ip", "filter"], capture_output=True, text=True, check=True)
        assert 'iifname "sd*" accept' in rules.stdout and 'oifname "sd*" ct state established,related' in rules.stdout
        assert private_networks().ok, "what lets our links through is no obstacle"


@needs_root
def test_a_kernel_that_refuses_a_private_network_is_reported_with_its_error() -> None:
    check = run("networks.private_networks()", prefix=("setpriv", "--bounding-set=-net_admin"))
    assert check.ok is None and "Operation not permitted" in check.found and "--cap-add NET_ADMIN" in check.fix


def test_few_open_files_are_reported() -> None:
    check = run("checks.open_files()", prefix=("prlimit", "--nofile=512:1024"))
    assert check == Check("open files", None, "up to 1024", "ulimit -n 65536")


@pytest.mark.parametrize(
    ("level", "consoles", "reported"),
    [
        (4, "ttyS0                -W- (EC  p a)    4:64\ntty0  -WU (  p  ) 4:7\n", "ttyS0 shows"),
        (7, "tty0                 -WU (EC  p  )    4:7\nttyS0 -W- (E p a) 4:64\n", "tty0, ttyS0 shows"),
        (3, "ttyS0                -W- (EC  p a)    4:64\n", ""),
        (7, "ttyS0                -W- (    p a)    4:64\n", ""),
        (7, "", ""),
    ],
)
def test_a_console_that_shows_kills_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: int, consoles: str, reported: str
) -> None:
    for name, text in (("PRINTK", f"{level}\t4\t1\t7\n"), ("CONSOLES", consoles)):
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(look, name, tmp_path / name)
    check = look.kernel_console()
    assert check.ok is (None if reported else True)
    assert check.found.startswith(reported)
    assert check.fix == ("sysctl -w kernel.printk=3" if reported else "")


def test_the_disk_of_a_directory_that_is_not_there_yet_is_that_of_its_parent(tmp_path: Path) -> None:
    assert look.disk(tmp_path / "not" / "yet").found.endswith(f" at {tmp_path}")


def test_a_check_that_breaks_is_a_finding() -> None:
    def odd_host() -> Check:
        raise FileNotFoundError("/proc/nothing")

    check = report._shielded(odd_host)
    assert (check.name, check.ok) == ("odd host", None)
    assert "/proc/nothing" in check.found


def test_what_fails_is_printed_with_the_line_that_fixes_it() -> None:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(report.render([Check("uv", False, "not found", "pip install uv[x]"), Check("a", True, "b")]))
    text = capture.get()
    assert "FAIL" in text
    assert "fix: pip install uv[x]" in text


def test_a_host_without_what_initscripts_need_learns_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "missing", lambda: ["wasmtime", "grpc"])
    check = look.initscripts()
    assert (check.ok, check.found) == (None, "switched off: wasmtime, grpc not installed")
    assert (
        "-m pip install " in check.fix and "wasmtime" in check.fix and "sockd" not in check.fix.partition("install")[2]
    )
    monkeypatch.undo()
    assert look.initscripts().ok and "wasmtime" in look.initscripts().found


def images_config(**settings: object) -> ImagesConfig:
    return ImagesConfig(**settings)  # type: ignore[arg-type]


def test_the_place_of_images_is_checked_and_nothing_is_made(tmp_path: Path) -> None:
    assert image_store(tmp_path).ok and image_key(tmp_path).ok, "a new worker makes both"
    assert not list(tmp_path.iterdir())
    check = image_store(tmp_path, images_config(store=str(tmp_path / "gone")))
    assert check.ok is False and "there is no such directory" in check.found and "[images]" in check.fix
    assert "images.worker = '../x'" in image_store(tmp_path, images_config(worker="../x")).found
    found = image_store(tmp_path, images_config(store=str(tmp_path))).found
    assert found.startswith(f"{tmp_path}, ") and found.endswith(" GB free")
    unreached = images_config(
        store="s3://bucket/p", endpoint="http://127.0.0.1:9", credentials_file=str(tmp_path / "keys")
    )
    (tmp_path / "keys").write_text("[default]\naws_access_key_id = a\naws_secret_access_key = b\n")
    (tmp_path / "keys").chmod(0o600)
    check = image_store(tmp_path, unreached)
    assert check.ok is None and "s3://bucket/p/ is unavailable" in check.found and "images.endpoint" in check.fix


def test_a_key_of_images_that_cannot_be_used_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "key"
    config = images_config(key_file=str(path))
    assert "is missing" in image_key(tmp_path, config).found
    path.write_bytes(bytes(32))
    path.chmod(0o644)
    assert image_key(tmp_path, config).fix.startswith(f"chmod 600 {path}")
    path.chmod(0o600)
    assert image_key(tmp_path, config).ok


@needs_root
def test_the_doctor_of_a_worker_that_cannot_start_finds_the_setting(tmp_path: Path) -> None:
    config = tmp_path / "my sockd.toml"
    config.write_text('[images]\ndocker_config = "config.json"\n')
    command = [sys.executable, "-m", "sockd", "up", "--state-dir", str(tmp_path / "s"), "--config", str(config)]
    up = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert up.returncode == 1 and "must be an absolute path" in up.stderr
    doctor = shlex.split(up.stderr.partition("  fix: ")[2].strip())
    reported = subprocess.run([*doctor, "--json"], cwd=ROOT, capture_output=True, text=True, check=False)
    (found,) = (check for check in json.loads(reported.stdout) if check["name"] == "image store")
    assert reported.returncode == 1 and found["ok"] is False and "must be an absolute path" in found["found"]


def test_networks_that_cannot_be_read_are_not_the_kernels_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "have_nft", lambda: True)
    monkeypatch.setattr(networks, "find_spec", lambda name: None)
    check = networks.private_networks()
    assert check.ok is None and "pyroute2, which is not installed" in check.found
    assert re.search(r"-m pip install .*'pyroute2\W", check.fix) and "CONFIG" not in check.fix


@needs_root
def test_limits_that_another_reader_does_not_see_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    hierarchies = Hierarchies.detect()
    if hierarchies.memory is None or hierarchies.memory.version != 1:
        pytest.skip("cgroupspy reads cgroups of version 1 alone")
    fds = os.listdir("/proc/self/fd")
    check = cgroup_limits.cgroup_limits()
    assert check.ok and "cgroupspy reads what was set: 64 MB, 0.5 processors" in check.found
    assert len(os.listdir("/proc/self/fd")) == len(fds)
    assert not glob.glob(f"/sys/fs/cgroup/*/sockd-doctor-{os.getpid()}-*")
    monkeypatch.setattr(cgroup_limits, "read_limits", lambda *_: cgroup_limits.Limits(1 << 20, 50_000, 100_000, ()))
    check = cgroup_limits.cgroup_limits()
    assert check.ok is False and "cgroupspy reads 1048576 bytes and 0.5 processors" in check.found
    monkeypatch.setattr(cgroup_limits, "find_spec", lambda name: None)
    check = cgroup_limits.cgroup_limits()
    assert check.ok is None and re.search(r"-m pip install 'cgroupspy\W", check.fix)
