"""The worker's settings that no other part checks."""

from __future__ import annotations

from pathlib import Path

import pytest

from sockd.plain.config import Config
from sockd.plain.errors import BadConfig


def loaded(path: Path, text: str) -> Config:
    path.write_text(text)
    return Config.load(path)


@pytest.mark.parametrize("megabytes", [0, 128])
def test_startup_data_of_images_may_be_as_large_as_an_object_of_the_store_holds(tmp_path: Path, megabytes: int) -> None:
    config = loaded(tmp_path / "sockd.toml", f"[images]\nprofile_mb = {megabytes}\n")
    assert config.images.profile_mb == megabytes


@pytest.mark.parametrize("megabytes", [-1, 129])
def test_a_bound_of_startup_data_that_cannot_be_kept_is_refused(tmp_path: Path, megabytes: int) -> None:
    with pytest.raises(BadConfig, match=f"images.profile_mb = {megabytes}: must be between 0 and 128"):
        loaded(tmp_path / "sockd.toml", f"[images]\nprofile_mb = {megabytes}\n")
