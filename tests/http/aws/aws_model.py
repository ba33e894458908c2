"""AWS's service model, as botocore has it: the operations that sockd offers, and the requests that boto3 sends for them."""

from __future__ import annotations

from typing import Any

import botocore.session
from botocore.model import OperationModel, StructureShape
from botocore.serialize import create_serializer

from sockd.http.aws.routes import Operation
from tests.http.aws.conftest import request

MODEL = botocore.session.get_session().get_service_model("lambda")
SERIALIZER = create_serializer("rest-json", include_validation=False)


def offered() -> list[OperationModel]:
    return [MODEL.operation_model(operation.value) for operation in Operation]


def serialized(model: OperationModel, parameters: dict[str, Any]) -> dict[str, Any]:
    """The request that boto3 sends, as its parts."""
    input_shape = model.input_shape
    assert isinstance(input_shape, StructureShape)
    in_path = [name for name, member in input_shape.members.items() if member.serialization.get("location") == "uri"]
    sent: dict[str, Any] = SERIALIZER.serialize_to_request({**dict.fromkeys(in_path, "f"), **parameters}, model)
    return sent


def on_the_wire(model: OperationModel, parameters: dict[str, Any]) -> bytes:
    """The request that boto3 sends."""
    sent = serialized(model, parameters)
    query = "&".join(f"{name}={value}" for name, value in sent["query_string"].items())
    path = sent["url_path"] + (f"?{query}" if query else "")
    headers = {name.replace("-", "_"): value for name, value in sent["headers"].items()}
    return request(sent["method"], path, sent["body"] or b"", **headers)
