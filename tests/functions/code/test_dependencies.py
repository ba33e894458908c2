"""What a function's code declares: which file is used, what is ignored and said, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from sockd.base.errors import BadArchive, ResolveFailed
from sockd.functions.code.dependencies import MAX_BLOCK_BYTES, Dependencies, read

PYPROJECT = '[project]\nname = "x"\ndependencies = ["one>=1", "two ; python_version > \'3\'"]\n'
SCRIPT = '# /// script\n# dependencies = ["three"]\n# ///\ndef f(event): pass\n'


def declared(directory: Path, handler: str = "f:f", **files: str) -> Dependencies:
    for name, text in files.items():
        path = directory / name.replace("__", ".").replace("_in_", "/")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return read(directory, handler)


def test_requirements_win_over_pyproject_and_that_over_the_entry_file(tmp_path: Path) -> None:
    found = declared(tmp_path, f__py=SCRIPT)
    assert (found.source, found.text, found.notes) == ("f.py", "three\n", ())
    found = declared(tmp_path, pyproject__toml=PYPROJECT)
    assert (found.source, found.text) == ("pyproject.toml", "one>=1\ntwo ; python_version > '3'\n")
    assert found.notes == ("the dependencies of f.py are ignored, those of pyproject.toml are used",)
    found = declared(tmp_path, requirements__txt="four")
    assert (found.source, found.text) == ("requirements.txt", "four")
    assert [note.split()[3] for note in found.notes] == ["pyproject.toml", "f.py"]


def test_nothing_declared_is_nothing(tmp_path: Path) -> None:
    assert declared(tmp_path, f__py="", pyproject__toml="[tool.ruff]\nline-length = 120\n") == Dependencies()
    assert declared(tmp_path, pyproject__toml='[project]\nname = "x"\n') == Dependencies()


def test_a_file_that_declares_none_is_not_in_the_way_of_the_next(tmp_path: Path) -> None:
    assert declared(tmp_path, f__py=SCRIPT, pyproject__toml='[project]\nname = "x"\n').source == "f.py"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ('[project.optional-dependencies]\ns = ["y"]\n', "project.optional-dependencies ignored"),
        ('[dependency-groups]\ndev = ["pytest"]\n', "dependency-groups ignored"),
        ('[tool.uv.sources]\none = {path = "../one"}\n', "tool.uv.sources ignored"),
        ('[tool.uv]\nconstraint-dependencies = ["six<1"]\nmanaged = true\n', "tool.uv.constraint-dependencies ignored"),
    ],
)
def test_what_is_ignored_is_said(tmp_path: Path, more: str, words: str) -> None:
    assert words in " ".join(declared(tmp_path, pyproject__toml=PYPROJECT + more).notes)


def test_dynamic_dependencies_are_not_computed(tmp_path: Path) -> None:
    found = declared(tmp_path, pyproject__toml='[project]\nname = "x"\ndynamic = ["dependencies"]\n')
    assert found.text is None and "dynamic" in found.notes[0]


@pytest.mark.parametrize("required", [">=3.99", "<3", "==2.7.*"])
def test_another_python_is_refused(tmp_path: Path, required: str) -> None:
    with pytest.raises(ResolveFailed, match="this worker runs Python 3"):
        declared(tmp_path, pyproject__toml=f'[project]\nrequires-python = "{required}"\n')
    (tmp_path / "pyproject.toml").unlink()
    with pytest.raises(ResolveFailed, match=r"f\.py: requires-python"):
        declared(tmp_path, f__py=f'# /// script\n# requires-python = "{required}"\n# ///\n')


@pytest.mark.parametrize(
    "text",
    [
        "[project",
        '[project]\ndependencies = "numpy"\n',
        "[project]\ndependencies = [1]\n",
        '[project]\ndependencies = ["a\\nb"]\n',
        '[project]\ndependencies = ["a\\\\"]\n',
        '[project]\ndependencies = [""]\n',
        "[project]\nrequires-python = 3\n",
        '[project]\nrequires-python = "new"\n',
        "a." * 100 + "b = 1\n",
    ],
)
def test_what_cannot_be_read_is_refused_unless_it_is_not_needed(tmp_path: Path, text: str) -> None:
    with pytest.raises((BadArchive, ResolveFailed), match=r"pyproject\.toml"):
        declared(tmp_path, pyproject__toml=text)
    if "requires-python = 3" not in text:
        found = declared(tmp_path, requirements__txt="one", pyproject__toml=text)
        assert found.text == "one" and "pyproject.toml" in found.notes[0]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('# /// script\n# dependencies = [\n#   "a",\n#\n#   "b",\n# ]\n# ///\n', "a\nb\n"),
        ('#!/usr/bin/env python\n"""Doc."""\n' + SCRIPT, "three\n"),
        ('# /// other\n# dependencies = ["a"]\n# ///\n', None),
        ('# /// script\n# dependencies = ["a"]\n', None),
        ('# /// script\nx = 1\n# dependencies = ["a"]\n# ///\n', None),
        (SCRIPT.replace("\n", "\r\n"), "three\n"),
        ('# /// script\n# dependencies = ["a"]\n# ///\n# ///\n', BadArchive),
        (SCRIPT + SCRIPT, BadArchive),
        ("# /// script\n" + "# \n" * MAX_BLOCK_BYTES + "# x\n# ///\n", BadArchive),
    ],
)
def test_the_block_of_a_script_is_found_as_pep_723_says(
    tmp_path: Path, text: str, lines: str | type[Exception] | None
) -> None:
    if isinstance(lines, type):
        with pytest.raises(lines, match=r"f\.py"):
            declared(tmp_path, f__py=text)
    else:
        assert declared(tmp_path, f__py=text).text == lines


def test_the_entry_file_may_be_in_a_package(tmp_path: Path) -> None:
    assert declared(tmp_path, "app.main:go", app_in_main__py=SCRIPT).source == "app/main.py"


def test_a_project_that_depends_on_sockd_is_not_given_it(tmp_path: Path) -> None:
    text = '[project]\ndependencies = ["sockd", "one"]\n'
    assert declared(tmp_path, "sockd:handler", pyproject__toml=text, sockd__py="").text == "one\n"
