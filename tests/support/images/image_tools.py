"""Programs that are independent readers and writers of container images and their file systems, from Debian's packages.

A fresh machine has none of them; tests that compare with one are skipped there. `apt install erofs-utils skopeo umoci
docker-registry containerd buildah` has them run."""

from __future__ import annotations

import shutil

import pytest


def needs(program: str) -> pytest.MarkDecorator:
    """A mark for tests that run the program."""
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")
