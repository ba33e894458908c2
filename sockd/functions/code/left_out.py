"""What is left out of a packed directory without a pattern of the user's: secrets, and what no function needs.

`.sockdignore` wins over both lists, `.gitignore` over the second (`selection`). Pure, except that files that may hold a private
key are read, and the beginning of small ones.
"""

from __future__ import annotations

import os
import re
from fnmatch import translate
from pathlib import Path

from sockd.functions.code.archive import BYTECODE

KEY_BYTES = 1 << 20
"""How much of a file is searched for a private key."""
SMALL_BYTES, HEAD_BYTES = 64 << 10, 4 << 10
"""A file of any name that is smaller is searched for a private key, in its first bytes."""
_PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY")
_WHOLE_KEY = re.compile(
    _PRIVATE_KEY.pattern + rb"(?: BLOCK)?-----(?:\s|\\r|\\n)+(?:[A-Za-z0-9+/]{16}|Proc-Type:|Version:|Comment:)"
)
"""A header and the beginning of a key: a program that reads keys has the header alone. A line's end may be JSON's."""


def _any(patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(translate(pattern) for pattern in patterns.split()))


SECRETS = _any(
    ".env .env.* *.env .envrc .netrc _netrc .pgpass .my.cnf .npmrc .pypirc .git-credentials .htpasswd .vault-token .dockercfg "
    "application_default_credentials.json kubeconfig kubeconfig.yml kubeconfig.yaml *.kubeconfig "
    "id_rsa* id_dsa* id_ecdsa* id_ed25519* *.p12 *.pfx *.jks *.keystore *.kdbx *.ppk *.tfstate *.tfstate.* *.tfvars"
)
"""Names of files that hold credentials."""
SECRET_PATHS = {(".streamlit", "secrets.toml")}
"""Directories with files that hold credentials, whose names alone say nothing."""
SECRET_DIRECTORIES = _any(".aws .azure .gnupg .kube .ssh .docker .gcloud")
SOURCES = _any("*.py *.pyi")
"""Names of files that may contain a private key and are packed: without one of them a function does not work."""
NO_SECRETS = _any("*.example *.sample *.template *.dist *.pub")
"""Names like those of `SECRETS` that are published on purpose."""
MAY_HOLD_KEYS = _any("*.pem *.key *.crt *.cer *credential*.json *service*account*.json *client*secret*.json *-key.json")
"""Names of files that are secrets if they hold a private key; the certificates of authorities have such names, too."""

NOT_NEEDED = {
    "version control": _any(".git .hg .svn .bzr .jj CVS .gitignore .gitattributes .gitmodules .hgignore"),
    "virtual environment": _any(".venv"),
    "cache": _any(
        f"{BYTECODE} .mypy_cache .pytest_cache .ruff_cache .hypothesis .tox .nox .ipynb_checkpoints .coverage .cache .uv-cache"
    ),
    "JavaScript packages": _any("node_modules"),
    "editor's file": _any(".*.sw[a-z] *~ .#* .DS_Store Thumbs.db .idea .vscode"),
    "packing rule": _any(".sockdignore .dockerignore"),
}
"""Names that no function needs, by the reason that is shown."""

CACHE_TAG = b"Signature: 8a477f597d28d172789f06886806bc55"
"""The beginning of CACHEDIR.TAG in a directory that can be made again (https://bford.info/cachedir/)."""


def is_secret_name(name: str, *, is_directory: bool) -> bool:
    """Whether files, or directories, with this name hold credentials."""
    if is_directory:
        return bool(SECRET_DIRECTORIES.fullmatch(name))
    return bool(SECRETS.fullmatch(name)) and not NO_SECRETS.fullmatch(name)


def is_secret_file(path: Path) -> bool:
    """Whether a regular file holds credentials by its place, or a private key. Raises: OSError."""
    if (path.parent.name, path.name) in SECRET_PATHS:
        return True
    if MAY_HOLD_KEYS.fullmatch(path.name):
        pattern, length = _PRIVATE_KEY, KEY_BYTES
    elif SOURCES.fullmatch(path.name) or path.stat().st_size >= SMALL_BYTES:
        return False
    else:
        pattern, length = _WHOLE_KEY, HEAD_BYTES
    with open(path, "rb", buffering=0) as file:
        return bool(pattern.search(file.read(length)))


def not_needed(path: Path, *, is_directory: bool) -> str:
    """Return why no function needs this file or directory; empty if one may."""
    for reason, names in NOT_NEEDED.items():
        if names.fullmatch(path.name):
            return reason
    if is_directory and ((path / "pyvenv.cfg").is_file() or (path / "conda-meta").is_dir()):
        return "virtual environment"
    return "cache" if is_directory and _is_tagged((path / "CACHEDIR").with_suffix(".TAG")) else ""


def _is_tagged(tag: Path) -> bool:
    if not os.path.isfile(tag):
        return False
    with open(tag, "rb") as file:
        return file.read(len(CACHE_TAG)) == CACHE_TAG
