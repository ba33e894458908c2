"""What packages add to sys.path in a Zygote, and what its forks have of it, against a start of the function's own.

This process plays the Zygotes and the forks one after the other; the functions of tests/isolation/sandbox are real forks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sockd_zygote.forks import hygiene
from sockd_zygote.forks.surroundings import CODE
from sockd_zygote.handlers import handler_server, package_path
from sockd_zygote.messages import errors

ONE, TWO, THREE = (f"{package_path.STORE}{name}" for name in ("one", "two", "three"))
LIBRARY = ["/usr/lib/python", "/usr/lib/python/lib-dynload"]
STATE = "_run", "_added", "_appended", "_base"


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A process like the root Zygote's: its sys.path."""
    monkeypatch.setattr(sys, "path", path := [*LIBRARY])
    monkeypatch.setattr(hygiene, "with_code", [])
    monkeypatch.setattr(errors, "_in_image", False)
    forget()
    yield path
    forget()


def forget() -> None:
    for name in STATE:
        getattr(package_path, name).clear()


def zygote(paths: list[str], pth: list[str], imports: Callable[[], object]) -> list[str]:
    """Play the imports of a Zygote, or of its child; the complaints."""
    package_path.share(paths, pth)
    imports()
    complaints = package_path.keep()
    hygiene.with_code[:] = package_path.with_code()
    return complaints


def fork(paths: list[str], pth: list[str], **more: object) -> list[str]:
    """Play a function's start from it; its sys.path."""
    before = sys.path[:]
    handler_server.extend_path({"code": CODE, "paths": paths, "pth": pth, **more})
    found = sys.path[:]
    sys.path[:] = before
    return found


def directory(root: Path, name: str, **files: str) -> str:
    """A directory with these .pth files, and one that they may name."""
    (root / name / "lib").mkdir(parents=True)
    for file, text in files.items():
        (root / name / f"{file}.pth").write_text(text)
    return str(root / name)


def test_entries_are_where_a_start_of_its_own_has_them_through_a_chain_of_zygotes(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    first = directory(tmp_path, "first", a="lib\n", b=f"{tmp_path / 'far'}\n")
    second = directory(tmp_path, "second", c="lib\n")
    by_one, by_two = [f"{ONE}/_vendor", "/opt/outside"], [f"{TWO}/_vendor", f"{first}/lib"]
    assert zygote([ONE], [first], lambda: sys.path.extend(by_one)) == []
    added = [first, f"{first}/lib", str(tmp_path / "far")]
    assert fork([ONE], [first]) == [CODE, ONE, *LIBRARY, *added, *by_one]
    assert zygote([ONE, TWO], [first, second], lambda: sys.path.extend(by_two)) == []
    everything = [CODE, ONE, TWO, THREE, *LIBRARY, *added, second, f"{second}/lib", *by_one, *by_two]
    assert fork([ONE, TWO, THREE], [first, second]) == everything
    assert fork([ONE, TWO, THREE], [first, second]) == everything  # no entry is there once more in the next fork


def test_a_pth_file_of_a_child_adds_what_an_import_of_its_parent_appended(tmp_path: Path) -> None:
    second = directory(tmp_path, "second", c="lib\n")
    zygote([ONE], [], lambda: sys.path.append(f"{second}/lib"))
    zygote([ONE, TWO], [second], lambda: None)
    # .pth files run first in a start of its own, where the entry was not there yet.
    assert fork([ONE, TWO], [second]) == [CODE, ONE, TWO, *LIBRARY, second, f"{second}/lib", f"{second}/lib"]


def test_imports_of_a_child_see_what_its_parent_appended() -> None:
    seen: list[str] = []
    zygote([ONE], [], lambda: sys.path.append("/opt/a"))
    zygote([ONE, TWO], [], lambda: seen.extend(sys.path))
    assert seen == [ONE, TWO, *LIBRARY, "/opt/a"]


def test_in_an_image_what_imports_append_is_behind_what_init_names() -> None:
    image = ["/", "/app", *LIBRARY, "/usr/lib/site-packages"]
    package_path.replace(image, [], "")
    sys.path += ["/usr/lib/site-packages/_vendor", "/app"]
    assert package_path.keep() == []
    hygiene.with_code[:] = package_path.with_code()
    path = fork([], [], sys_path=image)
    assert path == [*image, "/usr/lib/site-packages/_vendor", "/app"]


def test_it_stays_the_list_that_packages_have_kept(fresh: list[str]) -> None:
    zygote([ONE], [], lambda: sys.path.append("/opt/a"))
    handler_server.extend_path({"code": CODE, "paths": [ONE], "pth": []})
    assert sys.path is fresh and fresh == [CODE, ONE, *LIBRARY, "/opt/a"]


def test_a_fork_of_a_zygote_whose_imports_append_nothing_has_nothing_to_do() -> None:
    zygote([ONE], [], lambda: None)
    assert hygiene.with_code == [] and sys.path == [ONE, *LIBRARY]


REFUSED: dict[str, Callable[[], object]] = {
    "changes the order": lambda: sys.path.insert(0, "/opt/a"),
    "changes the order of": lambda: sys.path.insert(1, "/opt/a"),
    "changes the order of sys.path": lambda: sys.path.reverse(),
    "an import changes": lambda: sys.path.pop(),
    "appends the function's directory": lambda: sys.path.append(CODE),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_no_fork_can_have_at_its_place_is_refused(words: str) -> None:
    (complaint,) = zygote([ONE], [], REFUSED[words])
    assert words in complaint


def test_a_pth_file_that_inserts_at_the_front_is_refused(tmp_path: Path) -> None:
    first = directory(tmp_path, "first", a="import sys; sys.path.insert(0, '/opt/a')\n")
    assert zygote([ONE], [first], lambda: None) == ["an import changes the order of sys.path"]
