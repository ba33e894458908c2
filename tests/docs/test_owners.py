"""The list of owners is made of docstrings."""

from __future__ import annotations

from pathlib import Path

from docs.owners import FOLDERS, owners


def test_modules_and_classes_are_listed_with_what_they_own(tmp_path: Path) -> None:
    for folder in FOLDERS:
        (tmp_path / folder).mkdir()
    a = str(Path("sockd", "a.py"))
    (tmp_path / a).write_text(
        '"""A file.\n\nOwns the\nfile (a.b). Knows nothing. Owns a thread."""\nclass C:\n    "Owns a pipe."\n'
    )
    (tmp_path / "sockd" / "b.py").write_text('"""A function. Owns nothing."""\n')
    (tmp_path / "zygote" / "c.py").write_text('def f(): "Owns a pipe."\n')
    assert list(owners(tmp_path)) == [(a, "the file (a.b). a thread"), (f"{a} C", "a pipe")]


def test_the_product_has_owners() -> None:
    listed = dict(owners())
    assert len(listed) > 200
    assert "lock" in listed["sockd/worker/state_dir.py StateDir"]
