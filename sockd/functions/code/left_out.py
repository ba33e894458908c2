"""What is left out of a packed directory without a pattern of the user's: secrets, and what no function needs.

`.sockdignore` wins over both lists, `.gitignore` over the second (`selection`). Pure, except that files that may hold a private
key are read.
"""

from __future__ import annotations

import os
import re
from fnmatch import translate
from pathlib import Path

from sockd.functions.code.archive import BYTECODE

KEY_BYTES = 1 << 20
"""How much of a file is searched for a private key."""
_PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY")


def _any(patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(translate(pattern) for pattern in patterns.split()))


SECRETS = _any(
    ".env .env.* *.env .envrc .netrc _netrc .pgpass .my.cnf .npmrc .pypirc .git-credentials .htpasswd .vault-token "
    "id_rsa* id_dsa* id_ecdsa* id_ed25519* *.p12 *.pfx *.jks *.keystore *.kdbx *.ppk *.tfstate *.tfstate.* *.tfvars"
)
"""Names of files that hold credentials."""
SECRET_DIRECTORIES = _any(".aws .azure .gnupg .kube .ssh .docker .gcloud")
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


def holds_private_key(path: Path) -> bool:
    """Whether a file is one that may hold a private key, by its name, and holds one. Raises: OSError."""
    if not MAY_HOLD_KEYS.fullmatch(path.name):
        return False
    with open(path, "rb") as file:
        return bool(_PRIVATE_KEY.search(file.read(KEY_BYTES)))


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
