"""Shapes: request bodies as settings of a function, and functions as answers.

Pure. No member is accepted and dropped: a shape has every member of AWS's model, those that sockd does not obey are refused
by value (`not_offered`), and a body with any other member is refused as a whole.
"""

from __future__ import annotations

import base64
import math
import os
import platform
import re
import time
import uuid
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from sockd.base.function_arns import ACCOUNT, PARTITION, arn
from sockd.functions.code.function_config import NOT_IN_FILES, AwsAttributes
from sockd.http.aws.errors import InvalidParameterValue, InvalidRequestContent, ValidationFailed
from sockd.http.aws.refused_members import check_member
from sockd.http.worker_values import Details
from sockd.images.registry.reference import Reference

ROLE = f"arn:{PARTITION}:iam::{ACCOUNT}:role/sockd"
"""The role of functions that were given none: clients cannot do without."""
MAX_TAGS = 50
LOG_FORMATS = ("JSON", "Text")
APPLICATION_LEVELS = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")
SYSTEM_LEVELS = ("DEBUG", "INFO", "WARN")
_RUNTIME = re.compile(r"python3\.[0-9]{1,2}|provided(\.al2|\.al2023)?")
_PROVIDED = "provided"
_NEWEST_PROVIDED = "provided.al2023"
_OWN_RUNTIME = "python" + ".".join(platform.python_version_tuple()[:2])
_TEXT_CHARS = {"description": 256, "role": 2048, "runtime": 64}
ARCHITECTURE = "arm64" if os.uname().machine == "aarch64" else "x86_64"
"""This worker's, as AWS calls it."""
NO_ARCHIVE = msgspec.Raw()


class Shape(msgspec.Struct, rename="pascal", kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A part of a body."""

    def check_offered(self) -> None:
        """Check the members of this structure and of those within it. Raises: InvalidParameterValue, for one that sockd does
        not do."""
        for attribute, name in zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True):
            value = getattr(self, attribute)
            if isinstance(value, Shape):
                value.check_offered()
            else:
                check_member(name, value)


class Environment(Shape):
    variables: dict[str, str] = {}


class EphemeralStorage(Shape):
    size: int


APPLY_ON = "PublishedVersions", "None"
"""To what SnapStart can apply; $LATEST has a snapshot, too."""


class LoggingConfig(Shape):
    """How a function logs. Each function has its own log, so that LogGroup has one value."""

    log_format: str | None = None
    application_log_level: str | None = None
    system_log_level: str | None = None
    log_group: str | None = None

    def check(self, function: str) -> None:
        """Args: function: its name. Raises: InvalidParameterValue, ValidationFailed."""
        if self.log_group and self.log_group != log_group(function):
            raise InvalidParameterValue(
                f"LogGroup is not offered by sockd: each function has its own log; leave it out or set {log_group(function)}"
            )
        for name, value, allowed in (
            ("logFormat", self.log_format, LOG_FORMATS),
            ("applicationLogLevel", self.application_log_level, APPLICATION_LEVELS),
            ("systemLogLevel", self.system_log_level, SYSTEM_LEVELS),
        ):
            if value is not None and value not in allowed:
                raise ValidationFailed(
                    value[:64], f"loggingConfig.{name}", f"Member must satisfy enum value set: [{', '.join(allowed)}]"
                )

    def changes(self) -> dict[str, Any]:
        """The keys of `sockd.toml` that this sets; the format text has no levels."""
        if self.log_format == "Text" and not (self.application_log_level or self.system_log_level):
            return {"log_format": "text", "log_level": None, "system_log_level": None}
        given = {
            "log_format": self.log_format,
            "log_level": self.application_log_level,
            "system_log_level": self.system_log_level,
        }
        return {key: value.lower() for key, value in given.items() if value is not None}


class ImageConfig(Shape):
    """What replaces an image's own; empty: nothing does."""

    entry_point: list[str] | None = None
    command: list[str] | None = None
    working_directory: str | None = None

    def changes(self) -> dict[str, Any]:
        """The keys of `sockd.toml` that this sets: all of them, as on AWS."""
        return {
            "entrypoint": self.entry_point or None,
            "command": self.command or None,
            "working_directory": self.working_directory or None,
        }


class SnapStart(Shape):
    """Whether versions have snapshots."""

    apply_on: str | None = None

    def check(self) -> None:
        """Raises: ValidationFailed."""
        if self.apply_on not in (None, *APPLY_ON):
            raise ValidationFailed(
                str(self.apply_on)[:64],
                "snapStart.applyOn",
                f"Member must satisfy enum value set: [{', '.join(APPLY_ON)}]",
            )

    def changes(self) -> dict[str, Any]:
        """The keys of `sockd.toml` that this sets."""
        return {} if self.apply_on is None else {"snapshot": self.apply_on == APPLY_ON[0]}


class Settings(Shape):
    """What creating a function and changing its configuration have in common."""

    function_name: str | None = None
    handler: str | None = None
    runtime: str | None = None
    role: str | None = None
    description: str | None = None
    timeout: int | None = None
    memory_size: int | None = None
    environment: Environment | None = None
    ephemeral_storage: EphemeralStorage | None = None
    layers: list[Any] | None = None
    file_system_configs: list[Any] | None = None
    image_config: ImageConfig | None = None
    vpc_config: dict[str, Any] | None = None
    dead_letter_config: dict[str, Any] | None = None
    snap_start: SnapStart | None = None
    logging_config: LoggingConfig | None = None
    kms_key_arn: str | None = msgspec.field(name="KMSKeyArn", default=None)
    tracing_config: dict[str, Any] | None = None
    durable_config: dict[str, Any] | None = None
    capacity_provider_config: dict[str, Any] | None = None
    runtime_config: dict[str, Any] | None = None
    accelerator_config: dict[str, Any] | None = None

    def check(self, function: str) -> None:
        """Args: function: its name. Raises: InvalidParameterValue, ValidationFailed."""
        if self.runtime is not None and not _RUNTIME.fullmatch(self.runtime):
            raise InvalidParameterValue(
                f"Value {self.runtime[:64]} at 'runtime' failed to satisfy constraint: Member must satisfy enum value set: "
                f"[python3.N, provided, provided.al2, provided.al2023]; Python here is the worker's own, {_OWN_RUNTIME}"
            )
        if self.logging_config is not None:
            self.logging_config.check(function)
        if self.snap_start is not None:
            self.snap_start.check()
        for key, most in _TEXT_CHARS.items():
            if len(getattr(self, key) or "") > most:
                raise InvalidParameterValue(f"{key.capitalize()} must be at most {most} characters")

    def changes(self, old: AwsAttributes, **attributes: Any) -> dict[str, Any]:
        """The keys of `sockd.toml` that this sets.

        Args: old: what was said of the function before; attributes: of AwsAttributes, to be set besides."""
        given = {
            "handler": self.handler,
            "runtime": self._own_runtime(old),
            "timeout_s": self.timeout,
            "memory_mb": self.memory_size,
            "env": self.environment.variables if self.environment else None,
            "tmp_mb": self.ephemeral_storage.size if self.ephemeral_storage else None,
        }
        for key in _TEXT_CHARS:
            if getattr(self, key) is not None:
                attributes[key] = getattr(self, key)
        aws = msgspec.to_builtins(msgspec.structs.replace(old, **attributes))
        logging = self.logging_config.changes() if self.logging_config is not None else {}
        image = self.image_config.changes() if self.image_config is not None else {}
        snapshot = self.snap_start.changes() if self.snap_start is not None else {}
        own = {key: value for key, value in given.items() if value is not None}
        return {**own, **logging, **image, **snapshot, "aws": aws}

    def _own_runtime(self, old: AwsAttributes) -> str | None:
        """`runtime` of sockd.toml; None: as it is, so that code may say for itself that it is a program."""
        if self.runtime is not None and self.runtime.startswith(_PROVIDED):
            return _PROVIDED
        return "python" if self.runtime is not None and old.runtime.startswith(_PROVIDED) else None


class Update(Settings):
    """UpdateFunctionConfiguration."""

    revision_id: str | None = None


class Code(Shape):
    """Where an archive or an image is."""

    zip_file: msgspec.Raw = NO_ARCHIVE
    image_uri: str | None = None
    s3_bucket: str | None = None
    s3_key: str | None = None
    s3_object_version: str | None = None
    s3_object_storage_mode: str | None = None
    source_kms_key_arn: str | None = msgspec.field(name="SourceKMSKeyArn", default=None)

    def check(self, architectures: list[str] | None = None) -> None:
        """Raises: InvalidParameterValue."""
        if architectures not in (None, [], [ARCHITECTURE]):
            raise InvalidParameterValue(f"Architectures: this worker runs on {ARCHITECTURE}")
        if (self.image_uri is None) == (self.zip_file == NO_ARCHIVE):
            raise InvalidParameterValue(
                "sockd takes code as ZipFile, an archive within the request, or as ImageUri, an image in a registry"
            )


class UpdateCode(Code):
    """UpdateFunctionCode."""

    architectures: list[str] | None = None
    publish: bool = False
    publish_to: str | None = None
    dry_run: bool = False
    revision_id: str | None = None


class Create(Settings, kw_only=True):
    """CreateFunction."""

    code: Code
    package_type: str = "Zip"
    architectures: list[str] | None = None
    publish: bool = False
    publish_to: str | None = None
    tags: dict[str, str] = {}
    code_signing_config_arn: str | None = None
    tenancy_config: dict[str, Any] | None = None

    def check(self, function: str) -> None:
        """Raises: InvalidParameterValue, ValidationFailed."""
        super().check(function)
        if self.package_type not in ("Zip", "Image"):
            raise ValidationFailed(
                self.package_type[:64], "packageType", "Member must satisfy enum value set: [Image, Zip]"
            )
        if (self.package_type == "Image") != (self.code.image_uri is not None):
            raise InvalidParameterValue(
                f"PackageType {self.package_type} goes with {'ImageUri' if self.package_type == 'Image' else 'ZipFile'}."
            )
        if self.package_type == "Image":
            if self.runtime or self.handler:
                raise InvalidParameterValue("Runtime and Handler are not for functions created with an ImageUri.")
        elif not self.runtime or not self.handler:
            raise InvalidParameterValue(
                "Runtime and Handler are mandatory parameters for functions created with a ZipFile."
            )
        check_tags(self.tags)
        self.code.check(self.architectures)


class Tags(Shape):
    """TagResource."""

    tags: dict[str, str]


class Publish(Shape):
    """PublishVersion."""

    code_sha256: str | None = msgspec.field(name="CodeSha256", default=None)
    description: str | None = None
    revision_id: str | None = None
    publish_to: str | None = None


class Routing(Shape):
    """Where the rest of an alias's requests go."""

    additional_version_weights: dict[str, float] | None = None


class AliasShape(Shape):
    """CreateAlias, and UpdateAlias, where what is missing stays as it is."""

    name: str = ""
    function_version: str | None = None
    description: str | None = None
    routing_config: Routing | None = None
    revision_id: str | None = None


class Provisioned(Shape):
    """PutProvisionedConcurrencyConfig."""

    provisioned_concurrent_executions: int


class Concurrency(Shape):
    """PutFunctionConcurrency."""

    reserved_concurrent_executions: int


S = TypeVar("S", bound=Shape)


def parse(body: bytes | bytearray, shape: type[S]) -> S:
    """A body as a shape. Raises: InvalidRequestContent; InvalidParameterValue, for a member that sockd does not do."""
    try:
        parsed = msgspec.json.decode(body or b"{}", type=shape)
        # JSON can say "\ud800", which no UTF-8 has: neither the registry nor an answer could hold it.
        msgspec.json.encode(parsed)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidRequestContent(f"Could not parse request body into json: {error}") from None
    parsed.check_offered()
    return parsed


def check_tags(tags: dict[str, str]) -> None:
    """Raises: InvalidParameterValue."""
    if len(tags) > MAX_TAGS or any(not 0 < len(key) <= 128 or len(value) > 256 for key, value in tags.items()):
        raise InvalidParameterValue(
            f"Tags: at most {MAX_TAGS}, with keys of 1 to 128 characters and values of up to 256"
        )


def kept(details: Details, aws: AwsAttributes) -> dict[str, Any]:
    """The settings that this API can change, as they are: new code does not change them, whatever its `sockd.toml` says.

    Args: aws: the attributes with which they go on."""
    config = details.config
    settings = {
        "handler": config.handler,
        "runtime": config.runtime,
        "timeout_s": config.timeout_s,
        "memory_mb": config.memory_mb,
        "env": config.env,
        "tmp_mb": config.tmp_mb,
        "log_format": config.log_format,
        "log_level": config.log_level,
        "system_log_level": config.system_log_level,
        "snapshot": config.snapshot,
        "aws": msgspec.to_builtins(aws),
    }
    return settings if aws.reserved_concurrency is None else {**settings, "concurrency": config.concurrency}


def of_image(details: Details, uri: str, aws: AwsAttributes) -> dict[str, Any]:
    """All settings of a function in an image, for another image: it has no `sockd.toml` that would say them again."""
    settings = {key: value for key, value in msgspec.to_builtins(details.config).items() if key not in NOT_IN_FILES}
    return {
        **{key: value for key, value in settings.items() if value is not None},
        "image": uri,
        "aws": msgspec.to_builtins(aws),
    }


def attributes(details: Details) -> AwsAttributes:
    """What was said of a function; of one that the command line deployed, nothing."""
    return details.config.aws or AwsAttributes()


def revision(details: Details) -> str:
    """Another one for each change of a function, and for each of its versions."""
    record, published = details.record, details.publication
    at = (
        f"{record.version} {record.published_at!r}"
        if published is None
        else f"{published.number}:{published.published_at}"
    )
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{record.name} {at}"))


def code_sha256(details: Details) -> str:
    """Return the SHA-256 of the uploaded archive, or the digest of an image. For code that was not uploaded as an archive it
    is made from the digest of the files."""
    if details.record.image:
        return details.record.image.removeprefix("sha256:")
    return attributes(details).zip_sha256 or base64.b64encode(bytes.fromhex(details.record.digest)).decode()


_FUNCTION_ERROR = "FunctionError"
_RESTORING = "Restoring"
_COMING = ("waiting", "making")
"""States of a snapshot that is not there yet."""


def configuration(details: Details, qualifier: str | None = None) -> dict[str, Any]:
    """A FunctionConfiguration. What was deployed is active, or has failed: no client has to wait.

    Args: qualifier: by which the caller named it, so the ARN does, too."""
    record, config, published = details.record, details.config, details.publication
    aws = attributes(details)
    seconds, milliseconds = divmod(int(record.published_at * 1000), 1000)
    answer: dict[str, Any] = {
        "FunctionName": record.name,
        "FunctionArn": arn(record.name, qualifier),
        "Runtime": aws.runtime or (_NEWEST_PROVIDED if config.runtime == _PROVIDED else _OWN_RUNTIME),
        "Role": aws.role or ROLE,
        "Handler": config.handler or record.handler.replace(":", "."),
        "CodeSize": aws.zip_bytes or record.code_bytes,
        "Description": published.description if published else aws.description,
        "Timeout": math.ceil(config.timeout_s),
        "MemorySize": config.memory_mb,
        "LastModified": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{milliseconds:03}+0000",
        "CodeSha256": code_sha256(details),
        "Version": details.version,
        "TracingConfig": {"Mode": "PassThrough"},
        "RevisionId": revision(details),
        **state(details),
        "PackageType": "Zip",
        "Architectures": [ARCHITECTURE],
        "EphemeralStorage": {"Size": config.tmp_mb},
        "SnapStart": {
            "ApplyOn": APPLY_ON[0] if config.snapshot else APPLY_ON[1],
            "OptimizationStatus": "On" if details.snapshot == "serving" else "Off",
        },
        "LoggingConfig": logging_config(details),
    }
    if record.image:
        del answer["Runtime"], answer["Handler"]
        answer |= {"PackageType": "Image", "CodeSize": 0}
        if replaced := image_config(details):
            answer["ImageConfigResponse"] = {"ImageConfig": replaced}
    if environment := config.shown_environment:
        answer["Environment"] = {"Variables": environment}
    return answer


def state(details: Details) -> dict[str, str]:
    """State and LastUpdateStatus, with AWS's reason for a version whose handler does not start, or which is being restored."""
    failed = details.failed
    if details.unready is not None:
        reason = {"StateReason": details.unready.error.message, "StateReasonCode": _RESTORING}
        return {"State": "Inactive", **reason, "LastUpdateStatus": "Successful"}
    if details.snapshot in _COMING and details.publication is not None:
        reason = {"StateReason": "The function is being created.", "StateReasonCode": "Creating"}
        return {"State": "Pending", **reason, "LastUpdateStatus": "Successful"}
    if failed is None:
        return {"State": "Active", "LastUpdateStatus": "Successful"}
    update = {
        "LastUpdateStatus": "Failed",
        "LastUpdateStatusReason": failed.reason,
        "LastUpdateStatusReasonCode": _FUNCTION_ERROR,
    }
    if not failed.is_live:
        return {"State": "Active", **update}
    return {"State": "Failed", "StateReason": failed.reason, "StateReasonCode": _FUNCTION_ERROR, **update}


def image_config(details: Details) -> dict[str, Any]:
    """What replaces the image's own."""
    config = details.config
    replaced = {
        "EntryPoint": config.entrypoint,
        "Command": config.command,
        "WorkingDirectory": config.working_directory,
    }
    return {name: value for name, value in replaced.items() if value is not None}


def code_location(details: Details) -> dict[str, str]:
    """GetFunction's Code: of an image as it was named, and as its digest names it."""
    image = details.config.image
    if not details.record.image or image is None:
        return {"RepositoryType": "sockd"}
    resolved = (
        image
        if image == details.record.image
        else str(replace(Reference.parse(image), tag="", digest=details.record.image))
    )
    return {"RepositoryType": "ECR", "ImageUri": image, "ResolvedImageUri": resolved}


def logging_config(details: Details) -> dict[str, str]:
    """How a function logs; levels are a JSON log's alone."""
    config, group = details.config, {"LogGroup": log_group(details.record.name)}
    if config.log_format == "text":
        return {"LogFormat": "Text", **group}
    levels = {"ApplicationLogLevel": config.log_level, "SystemLogLevel": config.system_log_level}
    return {"LogFormat": "JSON", **{name: (level or "info").upper() for name, level in levels.items()}, **group}


def log_group(function: str) -> str:
    """The name of a function's log, as on AWS."""
    return f"/aws/lambda/{function}"
