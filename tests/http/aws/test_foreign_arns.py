"""ARNs of other accounts and regions, in each operation that names a function."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.model import OperationModel, StructureShape

from tests.http.aws.aws_model import offered, on_the_wire
from tests.http.aws.fake_lambda import FakeLambda
from tests.http.raw import Raw

pytestmark = pytest.mark.anyio
NAMING = ("FunctionName", "Resource")


def named_by(model: OperationModel) -> str | None:
    """The member that names a function."""
    shape = model.input_shape
    assert isinstance(shape, StructureShape)
    return next((name for name in NAMING if name in shape.members), None)


OPERATIONS = [model for model in offered() if named_by(model)]


def test_all_but_a_few_operations_name_a_function() -> None:
    assert {model.name for model in offered()} - {model.name for model in OPERATIONS} == {
        "GetAccountSettings",
        "ListFunctions",
        "ListLayers",
    }


@pytest.mark.parametrize("model", OPERATIONS, ids=lambda model: model.name)
@pytest.mark.parametrize(
    ("prefix", "status", "kind"),
    [
        ("arn:aws:lambda:eu-central-1:000000000000:function:", 404, "ResourceNotFoundException"),
        ("arn:aws-cn:lambda:local:000000000000:function:", 404, "ResourceNotFoundException"),
        ("arn:aws:lambda:local:123456789012:function:", 403, "AccessDeniedException"),
        ("123456789012:function:", 403, "AccessDeniedException"),
    ],
)
async def test_no_operation_takes_another_s_function_for_its_own(
    client: Raw, worker: FakeLambda, model: OperationModel, prefix: str, status: int, kind: str
) -> None:
    worker.names.add("slow")
    worker.release.set()
    before = worker.functions.details("slow")
    parameters: dict[str, Any] = {str(named_by(model)): f"{prefix}slow"}
    if model.name == "CreateFunction":
        parameters |= {"Runtime": "python3.11", "Role": "r", "Handler": "a.b", "Code": {"ZipFile": b"PK..."}}
    reply = await client.ask(on_the_wire(model, parameters))
    assert (reply.status, reply.headers["x-amzn-errortype"]) == (status, kind), reply.body
    assert (worker.invoked, worker.events.accepted, worker.functions.runs) == ([], [], 0)
    assert worker.functions.details("slow").record is before.record
