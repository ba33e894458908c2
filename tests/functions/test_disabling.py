"""Disabling a function and giving it back the concurrency that it had."""

from __future__ import annotations

from sockd.functions.code.function_config import AwsAttributes, FunctionConfig
from sockd.functions.deploys.disabling import changes_to_disable, changes_to_enable


def test_what_is_disabled_has_its_former_concurrency_when_it_is_enabled() -> None:
    before = FunctionConfig(concurrency=7)
    disabled = before.changed(changes_to_disable(before))
    assert disabled.concurrency == 0 and disabled.aws is not None and disabled.aws.reserved_concurrency == 0
    enabled = disabled.changed(changes_to_enable(disabled, [disabled, before], 10))
    assert enabled == before


def test_what_aws_clients_have_said_stays() -> None:
    before = FunctionConfig(concurrency=3, aws=AwsAttributes(description="d", reserved_concurrency=3))
    disabled = before.changed(changes_to_disable(before))
    assert disabled.aws == AwsAttributes(description="d", reserved_concurrency=0)
    assert disabled.changed(changes_to_enable(disabled, [disabled, disabled, before], 10)) == before


def test_where_no_deploy_had_a_concurrency_it_is_the_worker_s_own() -> None:
    disabled = FunctionConfig(concurrency=0)
    assert disabled.changed(changes_to_enable(disabled, [disabled], 10)).concurrency == 10
