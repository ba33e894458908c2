"""Resolving: which requirements are taken, which wheel is chosen, what is said when there is none."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest
from packaging.tags import sys_tags

from sockd.base.errors import BuildNeeded, PackagesFailed, ResolveFailed
from sockd.isolation.roots.interpreter import OWN_PYTHON
from sockd.starts.packages import requirements
from sockd.starts.packages.distribution import Closure, Distribution, Source
from sockd.starts.packages.resolver import Resolver, choose, split
from sockd.starts.packages.uv import Uv, confinement, environment
from sockd.starts.packages.wheel_tags import NEVER, preference
from tests.support.servers.package_index import PackageIndex, wheel

DIGEST = "8abb2f1d86890a2dfb989f9a77cfcfd3e47c2a354b01111771326f8aa26e0254"
PURE = "https://i/six-1.0-py3-none-any.whl"
MB = 1 << 20


@pytest.fixture
def resolver(index: PackageIndex, tmp_path: Path) -> Resolver:
    return make_resolver(tmp_path, index.url)


def make_resolver(tmp_path: Path, index_url: str, *, deadline_s: float = 30) -> Resolver:
    (tmp_path / "tmp").mkdir(exist_ok=True)
    environ = dict(os.environ, UV_HTTP_RETRIES="0")
    uv = Uv(tmp_path / "uv-cache", index_url=index_url, environ=environ)
    return Resolver(uv, tmp_path / "tmp", deadline_s=deadline_s, max_file_bytes=100 * MB)


class TestRequirements:
    """The text, without uv."""

    def test_comments_markers_extras_and_continuations_are_read_as_pip_reads_them(self) -> None:
        text = '\ufeff# top\n\nRequests[socks] >= 2.0  # why\nFoo.Bar==1; \\\n  python_version > "3"\r\n-- no\n'
        parsed = requirements.parse(text.replace("-- no\n", ""))
        assert parsed.lines == ("requests[socks]>=2.0", 'foo-bar==1; python_version > "3"')

    def test_hashes_are_kept_for_the_wheels_and_not_given_to_uv(self) -> None:
        parsed = requirements.parse(f"Six==1.16.0 \\\n    --hash=sha256:{DIGEST} \\\n    --hash=sha256:{'0' * 64}\n")
        assert parsed.text == "six==1.16.0\n"
        assert parsed.allows("six", DIGEST) and parsed.allows("six", "0" * 64) and parsed.allows("other", "1" * 64)
        assert not parsed.allows("six", "1" * 64)

    @pytest.mark.parametrize(
        ("line", "why"),
        [
            ("-e .", "editable"),
            ("--editable=git+https://x/y", "editable"),
            ("-r /etc/shadow", "other files"),
            ("--requirement=more.txt", "other files"),
            ("-c constraints.txt", "other files"),
            ("--index-url https://evil/simple", "among those of the worker"),
            ("--extra-index-url=https://evil/simple", "among those of the worker"),
            ("-f /root", "among those of the worker"),
            ("--no-binary :all:", "options are refused"),
            ("six --config-settings=a=b", "only --hash"),
            ("./package", "paths are refused"),
            ("../package", "paths are refused"),
            ("/etc/passwd", "paths are refused"),
            ("~/wheel", "paths are refused"),
            ("file:///etc/passwd", "NAME @ https://"),
            ("https://host/six-1.0-py3-none-any.whl", "NAME @ https://"),
            ("git+ssh://host/six", "NAME @ https://"),
            ("six @ file:///etc/passwd", "paths are refused"),
            ("six@file:/etc/passwd", "paths are refused"),
            ("six @ http://169.254.169.254/x.whl", "built from source"),
            ("six-1.0-py3-none-any.whl", "paths are refused"),
            ("six --hash=md5:0123", "sha256"),
            ("six --hash=sha256:0123", "sha256"),
            ("six six", "six six"),
            ("six >= ", "line 2"),
            ("../six\\\n", "paths are refused"),
        ],
    )
    def test_what_names_a_host_file_or_another_index_is_refused(self, line: str, why: str) -> None:
        with pytest.raises(ResolveFailed) as refusal:
            requirements.parse(f"numpy\n{line}\n")
        assert why in refusal.value.message and "line 2" in refusal.value.message

    def test_urls_are_for_deploys_that_allow_builds(self) -> None:
        text = "six @ https://host/six.tar.gz\nfive @ git+https://host/five@v1#subdirectory=a\n"
        with pytest.raises(BuildNeeded, match="line 1"):
            requirements.parse(text)
        parsed = requirements.parse(text, may_have_urls=True)
        assert parsed.lines == tuple(text.splitlines()) and parsed.has_urls
        assert not requirements.parse("six", may_have_urls=True).has_urls

    @pytest.mark.parametrize(
        "url", ["git+ssh://host/six", "file:///etc/passwd", "https://user:word@host/six.whl", "git+file:///srv/six"]
    )
    def test_a_url_that_a_build_must_not_get_is_refused(self, url: str) -> None:
        with pytest.raises(ResolveFailed, match="line 1"):
            requirements.parse(f"six @ {url}", may_have_urls=True)

    def test_a_name_like_an_archive_is_a_name(self) -> None:
        assert requirements.parse("x.zip\ny.tar.gz").lines == ("x-zip", "y-tar-gz")

    def test_a_text_without_end_is_refused(self) -> None:
        with pytest.raises(ResolveFailed, match="limit"):
            requirements.parse("#" * (requirements.MAX_CHARACTERS + 1))


class TestChoice:
    """The wheel, from a lock file."""

    def lock(self, *filenames: str) -> dict[str, object]:
        wheels = [{"url": f"https://i/{name}", "hashes": {"sha256": f"{n:064x}"}} for n, name in enumerate(filenames)]
        return {"lock-version": "1.0", "packages": [{"name": "six", "version": "1.0", "wheels": wheels}]}

    def chosen(self, *filenames: str, wanted: str = "six") -> str:
        closure = choose(self.lock(*filenames), requirements.parse(wanted))
        return closure.distributions[0].url.rpartition("/")[2]

    def test_the_most_specific_tag_wins_whatever_the_order(self) -> None:
        native = f"six-1.0-{next(iter(sys_tags()))}.whl"
        pure = "six-1.0-py3-none-any.whl"
        assert self.chosen(native, pure) == self.chosen(pure, native) == native

    def test_of_equal_tags_the_higher_build_wins(self) -> None:
        assert self.chosen("six-1.0-2-py3-none-any.whl", "six-1.0-10-py3-none-any.whl") == "six-1.0-10-py3-none-any.whl"

    def test_a_wheel_with_another_hash_than_was_given_is_passed_over(self) -> None:
        native = f"six-1.0-{next(iter(sys_tags()))}.whl"
        wanted = f"six --hash=sha256:{1:064x}"
        assert self.chosen(native, "six-1.0-py3-none-any.whl", wanted=wanted) == "six-1.0-py3-none-any.whl"
        with pytest.raises(ResolveFailed, match="hashes"):
            self.chosen(native, wanted=wanted)

    @pytest.mark.parametrize("filename", ["six-1.0-cp27-cp27m-win32.whl", "six-1.0.tar.gz", "six.whl"])
    def test_a_file_that_this_interpreter_cannot_load_is_never_chosen(self, filename: str) -> None:
        assert preference(filename) == NEVER
        with pytest.raises(ResolveFailed, match="no wheel"):
            self.chosen(filename)

    @pytest.mark.parametrize(
        "package",
        [
            {"name": "six", "version": "1.0", "archive": {"url": "https://i/six.whl", "hashes": {"sha256": DIGEST}}},
            {"name": "six", "version": "1.0", "wheels": [{"url": PURE, "hashes": {}}]},
            {"name": "six", "version": "../..", "wheels": [{"url": PURE, "hashes": {"sha256": DIGEST}}]},
            {"name": "six"},
        ],
    )  # fmt: skip
    def test_a_lock_file_without_a_pinned_wheel_is_refused(self, package: dict[str, object]) -> None:
        with pytest.raises(ResolveFailed):
            choose({"lock-version": "1.0", "packages": [package]}, requirements.parse("six"))


SDIST = {"url": "https://i/six-1.0.tar.gz", "hashes": {"sha256": DIGEST}}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class TestSplit:
    """The lock file of a sandbox, which is untrusted."""

    def split(self, *packages: Mapping[str, object], wanted: str = "") -> tuple[str, list[Distribution]]:
        return split({"lock-version": "1.0", "packages": list(packages)}, requirements.parse(wanted))

    def test_wheels_are_names_and_versions_and_the_rest_is_built(self) -> None:
        wheels = [{"url": "https://elsewhere/five-1.0-py3-none-any.whl", "hashes": {"sha256": "1" * 64}}]
        pins, built = self.split(
            {"name": "Five", "version": "1.0", "wheels": wheels, "sdist": SDIST},
            {
                "name": "six",
                "version": "1.0",
                "sdist": SDIST,
                "wheels": [{"url": "https://i/six-1.0-cp27-none-win32.whl"}],
            },
            {
                "name": "seven",
                "version": "2",
                "vcs": {"type": "git", "url": "https://a:b@i/7.git", "commit-id": COMMIT},
            },
        )
        assert pins == "five==1.0\n"
        assert [each.source for each in built] == [
            Source(url="https://i/six-1.0.tar.gz", digest=DIGEST),
            Source(url="https://i/7.git", commit=COMMIT),
        ]

    def test_a_hash_that_was_given_decides(self) -> None:
        wheels = [{"url": PURE, "hashes": {"sha256": "1" * 64}}]
        package = {"name": "six", "version": "1.0", "wheels": wheels, "sdist": SDIST}
        assert self.split(package, wanted=f"six --hash=sha256:{'1' * 64}") == ("six==1.0\n", [])
        pins, built = self.split(package, wanted=f"six --hash=sha256:{DIGEST}")
        assert not pins and built[0].source == Source(url=str(SDIST["url"]), digest=DIGEST)
        with pytest.raises(ResolveFailed, match="none of the hashes"):
            self.split(package, wanted=f"six --hash=sha256:{'2' * 64}")

    def test_what_is_built_has_the_name_of_its_source_and_environment(self) -> None:
        package = {"name": "six", "version": "1.0", "sdist": SDIST}
        (first,), (second,) = (
            self.split(package)[1],
            self.split(package | {"sdist": SDIST | {"url": "https://j/x.zip"}})[1],
        )
        other = SDIST | {"hashes": {"sha256": "3" * 64}}
        assert first.key == second.key != self.split(package | {"sdist": other})[1][0].key
        assert len(first.key.rpartition("-")[2]) * 4 >= 128  # a deployer chooses the source: no other may have its key

    @pytest.mark.parametrize(
        "package",
        [
            {"name": "six", "version": "1.0"},
            {"name": "six", "version": "1.0", "sdist": {"url": "https://i/six.tar.gz"}},
            {"name": "six", "version": "1.0", "sdist": SDIST | {"url": "file:///etc/shadow"}},
            {"name": "six", "version": "1.0", "sdist": SDIST | {"url": "https://i/a b"}},
            {"name": "six", "version": "1.0", "sdist": SDIST | {"subdirectory": "../.."}},
            {"name": "six", "version": "../..", "sdist": SDIST},
            {"name": "a\nb", "version": "1.0", "wheels": [{"url": PURE}]},
            {"name": "six", "version": "1.0\nb", "wheels": [{"url": PURE}]},
            {"name": "six", "version": "1.0", "vcs": {"type": "hg", "url": "https://i/x", "commit-id": COMMIT}},
            {"name": "six", "version": "1.0", "vcs": {"type": "git", "url": "ssh://i/x", "commit-id": COMMIT}},
            {"name": "six", "version": "1.0", "vcs": {"type": "git", "url": "https://i/x", "commit-id": "--all"}},
        ],
    )
    def test_what_must_not_be_built_is_refused(self, package: dict[str, object]) -> None:
        with pytest.raises(ResolveFailed):
            self.split(package)


class TestEnvironment:
    """What uv gets and what it may do."""

    def test_index_proxy_and_certificates_pass_and_nothing_else_does(self) -> None:
        passed = {"PATH": "/bin", "SSL_CERT_FILE": "/c", "https_proxy": "http://p", "UV_INDEX_X_PASSWORD": "s"}
        kept_out = {"UV_TARGET": "/etc", "UV_PYTHON": "3.8", "LD_PRELOAD": "/x", "PYTHONPATH": "/y", "AWS_SECRET": "z"}
        made = environment({**passed, **kept_out}, cache=Path("/c"), index_url=None)
        assert {name: made.get(name) for name in passed} == passed
        assert not kept_out.keys() & made.keys()
        assert (made["UV_PYTHON_DOWNLOADS"], made["UV_NO_CONFIG"]) == ("never", "1")

    def test_a_host_that_is_set_up_for_pip_only_works(self) -> None:
        made = environment({"PIP_INDEX_URL": "http://i", "PIP_CERT": "/c"}, cache=Path("/c"), index_url=None)
        assert (made["UV_INDEX_URL"], made["SSL_CERT_FILE"]) == ("http://i", "/c")

    def test_the_configured_index_wins(self) -> None:
        made = environment(
            {"UV_INDEX_URL": "http://a", "PIP_INDEX_URL": "http://b"}, cache=Path("/c"), index_url="http://c"
        )
        assert made["UV_DEFAULT_INDEX"] == "http://c" and "UV_INDEX_URL" not in made

    @pytest.mark.anyio
    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root, which has capabilities to take away")
    async def test_a_command_keeps_one_capability_and_no_descriptor_of_ours(self, tmp_path: Path) -> None:
        look = (
            "import os, sys; status = open('/proc/self/status').read(); "
            "print([line for line in status.splitlines() if line.startswith(('CapEff', 'CapBnd', 'NoNewPrivs'))], "
            "os.getsid(0) == os.getpid(), "
            "*map(os.path.realpath, os.scandir('/proc/self/fd')), sep='|', file=sys.stderr)"
        )
        # uvloop closes nothing in a child: what was passed to the test run itself is passed on. The daemon marks those
        # close-on-exec when it starts; everything that Python opens is so from birth (PEP 446).
        with open(tmp_path / "ours", "w"), socket.create_server(("127.0.0.1", 0)) as ours:
            completed = await Uv(tmp_path, index_url=None).run_python(
                OWN_PYTHON.executable, "-c", look, cwd=tmp_path, max_file_bytes=MB
            )
            capabilities, leads_session, *files = completed.words.split("|")
            assert not {f"socket:[{os.fstat(ours.fileno()).st_ino}]", "ours"} & {
                file.rpartition("/")[2] for file in files
            }
        assert confinement(MB)
        assert capabilities == r"['CapEff:\t0000000000000002', 'CapBnd:\t0000000000000002', 'NoNewPrivs:\t1']"
        assert leads_session == "True"


@pytest.mark.anyio
class TestResolve:
    """uv and an index."""

    async def test_requirements_become_their_pinned_closure(self, resolver: Resolver, index: PackageIndex) -> None:
        index.add(wheel("app", "1.0", {"app.py": ""}, requires=("Lib.Two<2", 'never; sys_platform == "win32"')))
        index.add(wheel("lib-two", "2.0", {"lib_two.py": ""}))
        digest = index.add(wheel("lib-two", "1.5", {"lib_two.py": ""}))
        closure = await resolver.resolve("# ours\napp\n")
        assert [(each.name, each.version) for each in closure.distributions] == [("app", "1.0"), ("lib-two", "1.5")]
        assert closure.distributions[1].digest == digest
        assert closure.distributions[1].url == index.file_url("lib_two-1.5-py3-none-any.whl")

    async def test_the_same_requirements_give_an_equal_closure(self, resolver: Resolver, index: PackageIndex) -> None:
        index.add(wheel("app", "1.0", {"app.py": ""}))
        assert await resolver.resolve("app") == await resolver.resolve("App==1.*")

    async def test_constraints_choose_versions_and_ask_for_nothing(
        self, resolver: Resolver, index: PackageIndex
    ) -> None:
        index.add(wheel("app", "1.0", {"app.py": ""}, requires=("lib",)))
        for version in ("1.0", "2.0"):
            index.add(wheel("lib", version, {"lib.py": ""}))
        closure = await resolver.resolve("app", constraints="lib<2\nother==3\n")
        assert [(each.name, each.version) for each in closure.distributions] == [("app", "1.0"), ("lib", "1.0")]
        with pytest.raises(ResolveFailed, match="no wheel for this worker has one of the hashes"):
            await resolver.resolve("app", constraints=f"lib==1.0 --hash=sha256:{'0' * 64}\n")

    async def test_complete_requirements_are_not_added_to(self, resolver: Resolver, index: PackageIndex) -> None:
        index.add(wheel("app", "1.0", {"app.py": ""}, requires=("lib",)))
        index.add(wheel("lib", "1.0", {"lib.py": ""}))
        closure = await resolver.resolve("app==1.0", is_complete=True)
        assert [each.name for each in closure.distributions] == ["app"]

    @pytest.mark.parametrize("text", ["", "\n# nothing\n\n", "\ufeff"])
    async def test_no_requirement_runs_nothing(self, tmp_path: Path, text: str) -> None:
        assert await make_resolver(tmp_path, "http://127.0.0.1:9/").resolve(text) == Closure()
        assert not (tmp_path / "uv-cache").exists()

    async def test_a_requirement_for_another_platform_gives_nothing(self, resolver: Resolver) -> None:
        assert await resolver.resolve('six; sys_platform == "win32"') == Closure()

    async def test_a_package_that_does_not_exist_is_named(self, resolver: Resolver) -> None:
        with pytest.raises(ResolveFailed, match="no-such-package was not found"):
            await resolver.resolve("no-such-package")

    async def test_a_conflict_is_reported_in_the_resolvers_words(self, resolver: Resolver, index: PackageIndex) -> None:
        index.add(wheel("app", "1.0", {}, requires=("lib<2",)))
        index.add(wheel("lib", "1.0", {}))
        index.add(wheel("lib", "2.0", {}))
        with pytest.raises(ResolveFailed) as failure:
            await resolver.resolve("app\nlib>=2")
        assert "app depend on lib<2" in failure.value.message and failure.value.status == 400

    async def test_an_sdist_is_refused_because_building_it_runs_its_code(
        self, resolver: Resolver, index: PackageIndex
    ) -> None:
        index.add(("source-1.0.tar.gz", b"never opened"))
        with pytest.raises(ResolveFailed, match="no usable wheels") as failure:
            await resolver.resolve("source")
        assert "building from source is disabled" in failure.value.message
        assert not any("/files/" in path for path in index.requests)

    async def test_the_given_hash_decides(self, resolver: Resolver, index: PackageIndex) -> None:
        digest = index.add(wheel("app", "1.0", {"app.py": ""}))
        closure = await resolver.resolve(f"app==1.0 --hash=sha256:{digest}")
        assert closure.distributions[0].digest == digest
        with pytest.raises(ResolveFailed, match="hashes"):
            await resolver.resolve(f"app==1.0 --hash=sha256:{DIGEST}")

    async def test_an_index_that_is_down_is_not_the_deployers_fault(self, tmp_path: Path) -> None:
        with pytest.raises(PackagesFailed, match="did not answer") as failure:
            await make_resolver(tmp_path, "http://user:hunter2@127.0.0.1:9/simple").resolve("six")
        assert failure.value.status == 503 and "hunter2" not in failure.value.message

    async def test_a_resolver_that_takes_too_long_is_killed_and_leaves_nothing(
        self, index: PackageIndex, tmp_path: Path
    ) -> None:
        filename, data = wheel("app", "1.0", {"app.py": random.Random(1).randbytes(100_000)})
        index.add((filename, data))
        index.stalled.add(filename)
        with pytest.raises(PackagesFailed, match=r"longer than 1 s"):
            await make_resolver(tmp_path, index.url, deadline_s=1).resolve("app")
        assert not index.stalling.is_set() or index.abandoned.wait(5)  # a busy machine may not get as far as the wheel
        assert os.listdir(tmp_path / "tmp") == []
        assert not list((tmp_path / "uv-cache").glob(".tmp*"))

    async def test_messages_name_no_path_of_this_host(self, resolver: Resolver, tmp_path: Path) -> None:
        with pytest.raises(ResolveFailed) as failure:
            await resolver.resolve("six==1.0; python_version > 'x'\nno-such-package")
        assert str(tmp_path) not in failure.value.message
