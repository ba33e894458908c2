"""The file of a chunk store's secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from sockd.base.errors import SecretsLocked
from sockd.images.chunks.image_keys import ImageKeys


def test_the_keys_of_one_file_are_the_same_on_each_worker(tmp_path: Path) -> None:
    file = tmp_path / "images.key"
    made = ImageKeys.at(file, make=True)
    assert file.stat().st_mode & 0o777 == 0o600
    assert ImageKeys.at(file, make=True).tenant_key("a") == ImageKeys.at(file).tenant_key("a") == made.tenant_key("a")


def test_without_its_file_nothing_derives(tmp_path: Path) -> None:
    with pytest.raises(SecretsLocked, match=r"images\.key_file"):
        ImageKeys.at(tmp_path / "images.key")


@pytest.mark.parametrize(("content", "mode", "why"), [(b"short", 0o600, "is no key"), (bytes(32), 0o644, "chmod 600")])
def test_a_file_that_is_no_key_is_named_in_the_log_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes, mode: int, why: str
) -> None:
    file = tmp_path / "images.key"
    file.write_bytes(content)
    file.chmod(mode)
    with pytest.raises(SecretsLocked, match=r"images\.key_file") as reported:
        ImageKeys.at(file, make=True)
    assert str(tmp_path) not in reported.value.message and reported.value.status == 503
    assert str(file) in caplog.text and why in caplog.text
