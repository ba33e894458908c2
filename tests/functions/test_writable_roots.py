"""Functions whose sandboxes change their image's files, where the kernel has no overlays."""

from __future__ import annotations

import pytest

from sockd.base.errors import ImagesUnavailable
from sockd.functions.code.function_config import FunctionConfig
from sockd.functions.deploys import image_contents
from sockd.isolation.roots import image_mounting


@pytest.mark.anyio
async def test_they_are_refused_with_the_kernels_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_mounting, "why_no_writable_roots", lambda: "fsopen: No such device")
    await image_contents.check_writable_root(FunctionConfig(image="x"), None)
    with pytest.raises(ImagesUnavailable, match="has no overlays for it: fsopen: No such device"):
        await image_contents.check_writable_root(FunctionConfig(image="x", writable_root=True), None)
