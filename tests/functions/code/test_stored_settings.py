"""Settings that a newer sockd has stored."""

from __future__ import annotations

import json

import msgspec
import pytest

from sockd.base.config import FunctionDefaults
from sockd.functions.code.function_config import FunctionConfig


def test_settings_of_a_newer_sockd_are_read_but_for_what_this_one_does_not_know() -> None:
    ours = FunctionConfig.from_toml("memory_mb = 64\n[initscript]\ndeadline_s = 3\n", FunctionDefaults())
    stored = json.loads(ours.to_json())
    newer = {**stored, "label": "new", "initscript": {**stored["initscript"], "label": {"a": [1]}}}
    assert FunctionConfig.from_json(json.dumps(newer)) == ours


def test_settings_that_this_version_knows_as_something_else_are_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="memory_mb"):
        FunctionConfig.from_json('{"memory_mb": "much", "label": 1}')
