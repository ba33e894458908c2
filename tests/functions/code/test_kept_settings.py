"""What deploys keep of the settings that commands have set, and what they say of it."""

from __future__ import annotations

from typing import Any

import pytest

from sockd.base.errors import BadFunctionConfig
from sockd.functions.code.function_config import FunctionConfig
from sockd.functions.code.kept_settings import apply, marked, named


def commanded(before: FunctionConfig, **changes: Any) -> FunctionConfig:
    return marked(before, before.changed(changes), changes)


def test_a_setting_is_kept_until_a_deploy_names_it() -> None:
    before = commanded(FunctionConfig(), memory_mb=256, timeout_s=9.0)
    kept = apply(FunctionConfig(timeout_s=5.0), before, {"timeout_s"})
    assert (kept.config.memory_mb, kept.config.timeout_s) == (256, 5.0)
    assert kept.kept == ("memory_mb = 256",) and kept.changed == ("timeout_s from 9.0 to 5.0",)
    again = apply(FunctionConfig(), kept.config, set())
    assert (again.config.memory_mb, again.config.timeout_s) == (256, 3.0), "what a deploy has named is the deploy's"


def test_what_a_deploy_names_with_the_same_value_stays_a_commands() -> None:
    before = commanded(FunctionConfig(), memory_mb=256)
    same = apply(FunctionConfig(memory_mb=256), before, {"memory_mb"})
    assert (same.kept, same.changed) == ((), ())
    assert apply(FunctionConfig(), same.config, set()).config.memory_mb == 256


def test_variables_are_kept_one_by_one_and_their_values_are_not_shown() -> None:
    before = commanded(FunctionConfig(env={"A": "1", "B": "2", "C": "3"}), env={"A": "new", "C": "3", "D": "4"})
    assert before.by_command == ["env.A", "env.B", "env.D"]
    kept = apply(FunctionConfig(env={"A": "1", "C": "changed"}), before, {"env.A", "env.C"})
    assert kept.config.env == {"A": "1", "C": "changed", "D": "4"}
    assert kept.kept == ("env.D",) and kept.changed == ("env.A",)
    unset = apply(FunctionConfig(env={"B": "2"}), before, {"env.B"})
    assert unset.changed == ("env.B",) and unset.config.env["B"] == "2"


def test_settings_of_the_code_are_the_deploys() -> None:
    before = commanded(FunctionConfig(), handler="old:handler", memory_mb=256)
    assert apply(FunctionConfig(handler="new:handler"), before, set()).config.handler == "new:handler"


def test_an_image_setting_is_not_kept_without_an_image() -> None:
    before = commanded(FunctionConfig(image="i"), writable_root=True)
    assert not apply(FunctionConfig(), before, set()).config.writable_root
    assert apply(FunctionConfig(image="j"), before, set()).config.writable_root


def test_what_is_kept_and_does_not_go_with_the_deploy_is_named() -> None:
    before = commanded(FunctionConfig(), log_format="json", log_level="debug")
    with pytest.raises(BadFunctionConfig, match=r"kept from sockd config and sockd env: log_level"):
        apply(FunctionConfig(), before, {"log_format"})


def test_what_a_file_names() -> None:
    assert named({"memory_mb": 1, "env": {"A": "1"}}) == {"memory_mb", "env", "env.A"}
