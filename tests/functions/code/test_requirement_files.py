"""`-r` and `-c` in requirements.txt, and files of tools that sockd does not read."""

from __future__ import annotations

from pathlib import Path

import pytest

from sockd.base.errors import BadArchive, ResolveFailed
from sockd.functions.code.dependencies import Dependencies, read


def declared(directory: Path, files: dict[str, str]) -> Dependencies:
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return read(directory, "f:f")


def test_files_that_requirements_name_are_read_relative_to_their_own(tmp_path: Path) -> None:
    found = declared(
        tmp_path,
        {
            "requirements.txt": "one\n-r deps/base.txt  # the rest\n--constraint=deps/limits.txt\n",
            "deps/base.txt": "two\n-r more.txt\n-cmore-limits.txt\n",
            "deps/more.txt": "three\n-r base.txt\n-r ../requirements.txt\n",
            "deps/limits.txt": "two<2\n-r more-limits.txt\n",
            "deps/more-limits.txt": "three<3\n",
        },
    )
    assert (found.text or "").split() == ["one", "two", "three"]
    assert found.constraints.split() == ["three<3", "two<2"]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("/etc/passwd", r"requirements.txt line 2: '/etc/passwd' is not in the code directory"),
        ("../x.txt", r"requirements.txt line 2: '\.\./x.txt' is not in the code directory"),
        ("sub/../../x.txt", "is not in the code directory"),
        ("https://e.com/r.txt", "is not in the code directory"),
        ("gone.txt", r"requirements.txt line 2: there is no file 'gone.txt'"),
    ],
)
@pytest.mark.parametrize("option", ["-r ", "-c ", "--requirement="])
def test_no_file_outside_of_the_code_is_read(tmp_path: Path, option: str, target: str, words: str) -> None:
    (tmp_path / "x.txt").write_text("outside\n")
    with pytest.raises(BadArchive, match=words):
        declared(tmp_path / "code", {"requirements.txt": f"one\n{option}{target}\n"})


def test_a_link_in_the_code_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "secret").write_text("one\n")
    (tmp_path / "code" / "link.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(BadArchive, match=r"link\.txt cannot be read"):
        declared(tmp_path / "code", {"requirements.txt": "-r link.txt\n"})


def test_an_error_names_the_file_that_it_is_in(tmp_path: Path) -> None:
    files = {"requirements.txt": "one\n-r more.txt\n", "more.txt": "two\n-e .\n"}
    with pytest.raises(ResolveFailed, match=r"more\.txt line 2: '-e \.': editable packages are refused"):
        declared(tmp_path, files)


def test_many_files_are_refused(tmp_path: Path) -> None:
    files = {f"r{number}.txt": f"-r r{number + 1}.txt\n" for number in range(100)}
    with pytest.raises(BadArchive, match="at most 32 files"):
        declared(tmp_path, {**files, "requirements.txt": "-r r0.txt\n"})


POETRY = '[tool.poetry.dependencies]\npython = "^3.11"\nrequests = "^2"\n'


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (
            {"pyproject.toml": POETRY},
            r"\[tool\.poetry\.dependencies\] of pyproject\.toml is not read; .*: poetry export -f",
        ),
        (
            {"poetry.lock": ""},
            r"poetry\.lock is not read; .*: poetry export -f requirements\.txt -o requirements\.txt$",
        ),
        ({"Pipfile": "", "Pipfile.lock": "{}"}, r"Pipfile\.lock is not read; .*: pipenv requirements --hash > "),
        ({"pdm.lock": ""}, r"pdm\.lock is not read; .*: pdm export --prod -o requirements\.txt$"),
    ],
)
def test_files_of_other_tools_are_refused_with_the_command_that_converts(
    tmp_path: Path, files: dict[str, str], words: str
) -> None:
    with pytest.raises(ResolveFailed, match=words):
        declared(tmp_path, files)
    found = declared(tmp_path, {"requirements.txt": "one\n"})
    assert found.text == "one\n" and ("is not read; to use it: " in "".join(found.notes) or "pyproject.toml" in files)


def test_a_poetry_project_without_dependencies_deploys(tmp_path: Path) -> None:
    found = declared(tmp_path, {"pyproject.toml": '[tool.poetry.dependencies]\npython = "^3.11"\n'})
    assert found == Dependencies()


def test_what_the_code_brings_needs_no_declaration(tmp_path: Path) -> None:
    found = declared(tmp_path, {"Pipfile": "", "requests-2.0.dist-info/METADATA": ""})
    assert found.text is None and "Pipfile is not read" in found.notes[0]


def test_a_url_in_another_file_is_left_to_the_resolver(tmp_path: Path) -> None:
    files = {"requirements.txt": "-r more.txt\n", "more.txt": "x @ https://e.com/x.tar.gz\n"}
    assert (declared(tmp_path, files).text or "").strip() == "x @ https://e.com/x.tar.gz"
