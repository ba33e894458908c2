"""What a `sockd.toml` may say."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sockd.base.config import FunctionDefaults
from sockd.base.errors import BadFunctionConfig
from sockd.functions.code.function_config import (
    BOUNDS,
    INITSCRIPT_BOUNDS,
    AwsAttributes,
    FunctionConfig,
    InitscriptConfig,
)
from sockd.functions.code.setting_checks import check_name

DEFAULTS = FunctionDefaults()


def parse(text: str | None = None, **overrides: object) -> FunctionConfig:
    return FunctionConfig.from_toml(text, DEFAULTS, overrides)


def test_a_silent_file_gives_the_defaults_of_the_worker() -> None:
    config = FunctionConfig.from_toml(None, FunctionDefaults(memory_mb=256, network="none"))
    assert (config.memory_mb, config.network, config.timeout_s) == (256, "none", 3.0)
    assert (config.handler, config.reserved_memory_mb, config.env) == (None, 0, {})


def test_the_file_wins_over_defaults_and_the_deploy_over_the_file() -> None:
    config = parse('memory_mb = 512\ntimeout_s = 5\nenv = { A = "1" }', memory_mb=1024, timeout_s=None)
    assert (config.memory_mb, config.timeout_s, config.env) == (1024, 5.0, {"A": "1"})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("memory = 512", "unknown key 'memory'; did you mean 'memory_mb'?"),
        (
            'image = "i"\nreadiness_path = "/a b"',
            "readiness_path: must begin with a slash, and be ASCII without spaces",
        ),
        ("zzz = 1", "unknown key 'zzz'; the keys are app, app_port, build, command,"),
        ("memory_mb = '512'", "memory_mb: Expected `int`, got `str`"),
        ("memory_mb = true", "memory_mb: Expected `int`, got `bool`"),
        ("memory_mb = 1", "memory_mb = 1: must be between 32 and 10240"),
        ("timeout_s = 0", "timeout_s = 0.0: must be between 0.001 and 900"),
        ("timeout_s = nan", "timeout_s = nan: must be between"),
        ("timeout_s = inf", "timeout_s = inf: must be between"),
        ("concurrency = -1", "concurrency = -1: must be"),
        ("network = 'bridge'", "network: Invalid enum value 'bridge'"),
        ("reserved_memory_mb = 2000\nconcurrency = 2", "more than the function can use"),
        ("env = { A = 1 }", "sockd.toml: env.A must be text"),
        ("env = { '1A' = 'x' }", "must be letters"),
        ("env = { 'A=B' = 'x' }", "must be letters"),
        ("env = { _HANDLER = 'x' }", "reserved"),
        ("env = { AWS_LAMBDA_FUNCTION_NAME = 'x' }", "reserved"),
        ('env = { A = "\\u0000" }', "zero byte"),
        ("env = { A = '" + "x" * 4096 + "' }", "4097 bytes"),
        ("storage = 'ours'", "storage: Invalid enum value 'ours'"),
        ("initscript = 'x.wasm'", "initscript: Expected `object | null`, got `str`"),
        ("[initscript]\nwsam = 'x'", "unknown key 'initscript.wsam'; did you mean 'initscript.wasm'?"),
        ("[initscript]\nregion_mb = 0", "initscript.region_mb = 0: must be between 1 and 10240"),
        ("[initscript]\ndeadline_s = nan", "initscript.deadline_s = nan: must be between"),
        ("[initscript]\nrpcs = '1'", "initscript.rpcs: Expected `int`, got `str`"),
        ("[initscript]\nwasm = '../x'", "initscript.wasm = '../x': must be a file of the code"),
        ("[initscript]\nwasm = '/etc/x'", "must be a file of the code"),
        ("[initscript]\nargs = '" + "x" * 32769 + "'", "initscript.args: must be text of at most 32768 bytes"),
        ("[initscript]\nendpoints = ['a b']", "initscript.endpoints: 'a b' is not host"),
        ("[initscript]\nendpoints = [1]", "Expected `str`, got `int`"),
        ("[initscript]\nendpoints = [" + "'h'," * 101 + "]", "initscript.endpoints: at most 100"),
        ("memory_mb = ", "sockd.toml: "),
        ("x = " + "[" * 10_000, "sockd.toml: "),
    ],
)
def test_a_wrong_file_is_refused_in_words_that_name_the_key(text: str, words: str) -> None:
    with pytest.raises(BadFunctionConfig) as caught:
        parse(text)
    assert words in caught.value.message


def test_half_a_surrogate_pair_of_a_json_override_is_refused() -> None:
    with pytest.raises(BadFunctionConfig, match="surrogate"):
        parse(env={"A": "\ud800"})


def test_a_function_may_bring_its_own_credentials_and_region() -> None:
    env = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "r"}
    assert parse(env=env).env == env


def test_every_number_has_bounds_and_every_default_is_within_them() -> None:
    numbers = {name for name in FunctionConfig.__struct_fields__ if type(getattr(parse(), name)) in (int, float)}
    assert numbers == BOUNDS.keys()


def test_an_initscript_has_defaults_and_bounds_like_everything_else() -> None:
    script = parse("[initscript]\nwasm = 'init/a.wasm'").initscript
    assert script == InitscriptConfig(wasm="init/a.wasm")
    numbers = {name for name in script.__struct_fields__ if isinstance(getattr(script, name), int | float)}
    assert numbers == INITSCRIPT_BOUNDS.keys()
    assert parse(initscript={"rpcs": 5}).initscript == InitscriptConfig(rpcs=5)
    endpoints = ["s3.example.com:443", "*.internal", "10.0.0.0/8:9000", "[::1]:80"]
    assert parse(initscript={"endpoints": endpoints}).initscript == InitscriptConfig(endpoints=endpoints)


def test_settings_survive_the_registry() -> None:
    config = parse("cpus = 0.5\nenv = { A = 'ä' }\n[initscript]\nargs = 'x'", handler="m:f")
    assert FunctionConfig.from_json(config.to_json()) == config


@given(st.text(max_size=200))
def test_whatever_the_text_only_bad_function_config_is_raised(text: str) -> None:
    with contextlib.suppress(BadFunctionConfig):
        parse(text)


@pytest.mark.parametrize("name", ["f", "my-function_2", "A" * 64])
def test_names_that_aws_takes_are_taken(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", "a" * 65, "a/b", "..", "a b", "ä", "a\n", "a:1", "٣"])
def test_names_that_aws_refuses_are_refused(name: str) -> None:
    with pytest.raises(BadFunctionConfig, match="function name"):
        check_name(name)


def test_what_aws_clients_said_comes_with_a_deploy_and_not_from_a_file() -> None:
    said = {"aws": {"description": "d", "tags": {"a": "1"}}}
    config = FunctionConfig.from_toml("timeout_s = 4", FunctionDefaults(), said)
    assert config.aws == AwsAttributes(description="d", tags={"a": "1"})
    assert FunctionConfig.from_json(config.to_json()) == config
    with pytest.raises(BadFunctionConfig, match="unknown key 'aws'"):
        FunctionConfig.from_toml("[aws]\ndescription = 'd'", FunctionDefaults())


def test_a_change_leaves_the_rest_as_it_is() -> None:
    before = FunctionConfig.from_toml("timeout_s = 4\n[initscript]\nrpcs = 5", FunctionDefaults(), {"env": {"A": "1"}})
    after = before.changed({"env": {"B": "2"}, "memory_mb": 256})
    assert (after.env, after.memory_mb, after.timeout_s, after.initscript) == ({"B": "2"}, 256, 4, before.initscript)
    for wrong in ({"memory_mb": 1}, {"memory_mb": "x"}, {"env": {"1": ""}}):
        with pytest.raises(BadFunctionConfig):
            before.changed(wrong)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            'network = "Private"',
            "sockd.toml: network: Invalid enum value 'Private', must be one of host, none, private",
        ),
        ('egress = "10.0.0.1"', "sockd.toml: egress: Expected `list | null`, got `str`"),
        ("egress = [1]", "sockd.toml: egress[0]: Expected `str`, got `int`"),
    ],
)
def test_a_value_of_another_type_is_reported_with_its_file_and_key(text: str, says: str) -> None:
    with pytest.raises(BadFunctionConfig, match=f"^{re.escape(says)}$"):
        FunctionConfig.from_toml(text, FunctionDefaults())


def test_a_wrong_override_is_not_the_files() -> None:
    with pytest.raises(BadFunctionConfig, match=r"^network: Invalid enum value 'Private'"):
        FunctionConfig.from_toml('network = "host"', FunctionDefaults(), {"network": "Private"})


def test_errors_of_variables_name_them() -> None:
    with pytest.raises(BadFunctionConfig, match=r'sockd\.toml: env\.PORT must be text: .* PORT = "\.\.\."'):
        parse("[env]\nMODE = 'test'\nPORT = 8080\n")
    with pytest.raises(BadFunctionConfig, match=r"the limit is 4096\. The largest is LONG with 5000;"):
        parse(f"[env]\nMODE = 'test'\nLONG = '{'x' * 5000}'\n")
