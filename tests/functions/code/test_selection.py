"""What of a directory is packed: ignore files as git reads them, secrets, what no function needs, and links."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from sockd.base.errors import BadArchive
from sockd.functions.code.selection import LeftOut, Selection, is_packed, select

PRIVATE_KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\n"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIE\n-----END CERTIFICATE-----\n"


def tree(directory: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return directory


def chosen(directory: Path) -> Selection:
    return select(directory, max_entries=1000)


def packed(directory: Path) -> list[str]:
    return [each.path for each in chosen(directory).packed if not each.path.endswith("/")]


def reasons(directory: Path) -> dict[str, str]:
    return {each.path: each.reason for each in chosen(directory).left_out}


GIT_TREES = [
    "data/**\n!data/kept\n",
    "data/*\n!data/kept\n!data/sub/\n",
    "data/\n!data/kept\n",
    "*.csv\n!/a.csv\n",
    "/a.csv\nsub/*.csv\n",
    "**/deep\n",
    "data/**/b.csv\n",
    "\\#odd\n\\!odd\ntrailing\\ \n",
    "[ab].csv\n!b.csv\n",
    "*\n!*/\n!*.py\n",
    "# all\n\n*.csv   \n",
    "data\r\n!kept\r\n".replace("\r", ""),
    "su?/\n",
    "*.csv\n!sub/\n!sub/**\n",
]


@pytest.mark.parametrize("patterns", GIT_TREES)
@pytest.mark.parametrize("nested", ["", "!a.csv\n/b.csv\n"])
def test_gitignore_files_mean_what_they_mean_to_git(tmp_path: Path, patterns: str, nested: str) -> None:
    names = (
        "f.py",
        "a.csv",
        "b.csv",
        "#odd",
        "!odd",
        "trailing ",
        "deep/x",
        "data/kept",
        "data/a.csv",
        "data/sub/b.csv",
    )
    more = ("sub/a.csv", "sub/b.csv", "sub/deep/a.csv", "sub/x.py")
    tree(tmp_path, dict.fromkeys((*names, *more), "") | {".gitignore": patterns, "sub/.gitignore": nested})
    subprocess.run(
        ["git", "init", "-q", str(tmp_path)], check=True, env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    )
    listed = subprocess.run(
        ["git", "-C", str(tmp_path), "ls-files", "-z", "--others", "--exclude-standard"],
        check=True,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    expected = sorted(name for name in listed.stdout.split("\0") if name and not name.endswith(".gitignore"))
    assert [name for name in packed(tmp_path) if not name.endswith(".gitignore")] == expected


def test_sockdignore_wins_over_gitignore_and_over_the_defaults(tmp_path: Path) -> None:
    files = dict.fromkeys(("f.py", "lib/x.py", "data/d.csv", "checks/t.py", "node_modules/m.js"), "")
    tree(tmp_path, files | {".gitignore": "lib/\ndata/\n", ".sockdignore": "!lib/\n!node_modules/\n/checks/\n"})
    assert packed(tmp_path) == ["f.py", "lib/x.py", "node_modules/m.js"]
    assert reasons(tmp_path)["data/"] == ".gitignore line 2: data/"
    assert reasons(tmp_path)["checks/"] == ".sockdignore line 3: /checks/"


def test_what_no_function_needs_is_left_out_with_the_reason(tmp_path: Path) -> None:
    tagged = "Signature: 8a477f597d28d172789f06886806bc55\n"
    names = (
        ".git/HEAD",
        "env39/pyvenv.cfg",
        "conda/conda-meta/history",
        "node_modules/m.js",
        "f.py~",
        ".venv/x",
        "f.py",
    )
    tree(tmp_path, dict.fromkeys(names, "") | {"any/CACHEDIR.TAG": tagged, "pkg/__pycache__/f.pyc": ""})
    assert packed(tmp_path) == ["f.py"]
    assert reasons(tmp_path) == {
        ".git/": "version control",
        "env39/": "virtual environment",
        "conda/": "virtual environment",
        ".venv/": "virtual environment",
        "any/": "cache",
        "pkg/__pycache__/": "cache",
        "node_modules/": "JavaScript packages",
        "f.py~": "editor's file",
    }


def test_a_program_of_the_functions_own_keeps_its_node_modules(tmp_path: Path) -> None:
    tree(tmp_path, {"bootstrap": "#!/usr/bin/env node\n", "node_modules/m.js": ""})
    assert packed(tmp_path) == ["bootstrap", "node_modules/m.js"]


SECRETS = [".env", ".env.production", "prod.env", "id_rsa", "key.p12", ".netrc", "a/.npmrc", "infra/terraform.tfstate"]
NAMED = [".dockercfg", "kubeconfig", ".config/gcloud/application_default_credentials.json", ".streamlit/secrets.toml"]


@pytest.mark.parametrize("name", [*SECRETS, "server.pem", "tls/server.key", "google-credentials.json"])
def test_a_secret_is_left_out_until_sockdignore_includes_it(tmp_path: Path, name: str) -> None:
    tree(tmp_path, {"f.py": "", name: PRIVATE_KEY, ".gitignore": f"!{name}\n"})
    assert packed(tmp_path) == ["f.py"]
    assert chosen(tmp_path).left_out[-1].is_secret or chosen(tmp_path).left_out[0].is_secret
    (tmp_path / ".sockdignore").write_text(f"!/{name}\n")
    assert packed(tmp_path) == sorted(["f.py", name])


@pytest.mark.parametrize("name", NAMED)
def test_files_with_credentials_of_known_tools_are_left_out(tmp_path: Path, name: str) -> None:
    tree(tmp_path, {"f.py": "", name: "x"})
    assert [each for each in packed(tmp_path) if not each.endswith("/")] == ["f.py"]


@pytest.mark.parametrize("kind", ["OPENSSH ", "RSA ", "EC ", "ENCRYPTED ", ""])
def test_a_private_key_of_any_name_is_left_out_by_its_content(tmp_path: Path, kind: str) -> None:
    text = f"-----BEGIN {kind}PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\n"
    tree(tmp_path, {"f.py": "", "deploy_key": text, "account.json": json.dumps({"private_key": text})})
    assert packed(tmp_path) == ["f.py"]
    assert all(each.is_secret for each in chosen(tmp_path).left_out)


def test_a_source_file_and_a_mere_header_are_packed(tmp_path: Path) -> None:
    names = {
        "f.py": PRIVATE_KEY + "b" * 64,
        "reader.js": 'const HEAD = "-----BEGIN PRIVATE KEY-----"; const n = 1',
        "secrets.toml": "",
    }
    tree(tmp_path, names)
    assert packed(tmp_path) == sorted(names)


def test_directories_of_credentials_are_secrets_and_a_virtual_environment_is_none(tmp_path: Path) -> None:
    tree(tmp_path, {".aws/credentials": "", ".ssh/config": "", ".env/pyvenv.cfg": ""})
    found = {each.path: each.is_secret for each in chosen(tmp_path).left_out}
    assert found == {".aws/": True, ".env/": False, ".ssh/": True}


@pytest.mark.parametrize("name", ["cacert.pem", ".env.example", "id_rsa.pub", "credentials.json", "tls/root.crt"])
def test_what_is_published_on_purpose_is_packed(tmp_path: Path, name: str) -> None:
    tree(tmp_path, {name: CERTIFICATE})
    assert packed(tmp_path) == [name]


def test_links_inside_are_packed_as_what_they_point_to(tmp_path: Path) -> None:
    tree(tmp_path, {"lib/a.py": "a = 1", "lib/b/c.py": "", "f.py": ""})
    (tmp_path / "a.py").symlink_to("lib/a.py")
    (tmp_path / "also").symlink_to(tmp_path / "lib", target_is_directory=True)
    assert packed(tmp_path) == ["a.py", "also/a.py", "also/b/c.py", "f.py", "lib/a.py", "lib/b/c.py"]
    assert next(each for each in chosen(tmp_path).packed if each.path == "a.py").size_bytes == 5


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("/etc/passwd", "'sub/link' is a link to '/etc/passwd', outside of the directory; copy"),
        ("../../outside", r"'sub/link' is a link to '../../outside', outside of the directory; copy"),
        ("nowhere", "'sub/link' is a link to 'nowhere', which does not exist"),
        ("link", "'sub/link' is a link to 'link', which does not exist"),
        ("..", r"'sub/link' is a link to '..', a directory that the link is in"),
    ],
)
def test_other_links_are_refused_by_name_unless_they_are_ignored(tmp_path: Path, target: str, words: str) -> None:
    code = tree(tmp_path / "code", {"f.py": "", "sub/x.py": ""})
    tree(tmp_path, {"outside": ""})
    (code / "sub" / "link").symlink_to(target)
    with pytest.raises(BadArchive, match=f"{words}.* or name 'sub/link' in .sockdignore"):
        chosen(code)
    (code / ".sockdignore").write_text("sub/link\n")
    assert packed(code) == ["f.py", "sub/x.py"]


def test_a_link_does_not_smuggle_a_secret(tmp_path: Path) -> None:
    tree(tmp_path, {".env": "KEY=1", ".aws/credentials": "", "key.pem": PRIVATE_KEY})
    for name, target in (("settings", ".env"), ("aws", ".aws/credentials"), ("all", ".aws"), ("tls", "key.pem")):
        (tmp_path / name).symlink_to(target)
    assert packed(tmp_path) == []
    assert all(each.is_secret for each in chosen(tmp_path).left_out)


def test_files_that_are_named_are_packed_whatever_the_rules_say(tmp_path: Path) -> None:
    tree(tmp_path, {"data/d.csv": "", ".env": "", "f.py": "", ".gitignore": "data/\n"})
    found = select(tmp_path, only=["data", ".env"], max_entries=10)
    assert [each.path for each in found.packed] == [".env", "data/", "data/d.csv"]


def test_patterns_that_cannot_be_read_name_their_file(tmp_path: Path) -> None:
    tree(tmp_path, {"sub/.sockdignore": "x" * (2 << 20)})
    with pytest.raises(BadArchive, match=r"sub/\.sockdignore is longer than"):
        chosen(tmp_path)


def test_is_packed_agrees_with_the_selection(tmp_path: Path) -> None:
    tree(tmp_path, {"f.py": "", "sub/.gitignore": "x/\n", "sub/x/y": "", "sub/z": "", ".env": "", ".git/HEAD": ""})
    seen = {
        name: is_packed(tmp_path, Path(name)) for name in ("f.py", "sub/x/y", "sub/z", ".env", ".git/HEAD", "sub/x")
    }
    assert seen == {"f.py": True, "sub/x/y": False, "sub/z": True, ".env": False, ".git/HEAD": False, "sub/x": False}
    assert is_packed(tmp_path, Path("sub/gone")), "a file that was removed"
    assert LeftOut("sub/x/", "sub/.gitignore line 1: x/", by_git=True) in chosen(tmp_path).left_out
