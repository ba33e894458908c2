"""The other services of the tests: each answers its own client, and refuses what the real one would."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import subprocess
import sys
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from sockd.base.sigv4.canonical import Credentials
from tests.support.servers.line_server import LineServer, raw
from tests.support.servers.peers import vector_db
from tests.support.servers.sqs import Sqs

KEYS = Credentials("key", "secret")
ASK = """
import sys, grpc
from tests.support.servers.vector_db import ECHO, GET, get_shard, shard
with grpc.insecure_channel(sys.argv[1].removeprefix("grpc://")) as channel:
    get = channel.unary_unary(GET)
    assert get(get_shard("a")) == shard("a") != shard("b")
    assert channel.unary_unary(ECHO)(b"bytes") == b"bytes"
    for wrong in (get_shard("missing"), b"nonsense"):
        try:
            get(wrong)
        except grpc.RpcError as error:
            print(error.code().name)
"""


def client(session: boto3.Session, sqs: Sqs, secret_key: str = KEYS.secret_key) -> Any:
    return contextlib.closing(
        session.client(
            "sqs",
            endpoint_url=sqs.url,
            aws_access_key_id=KEYS.access_key,
            aws_secret_access_key=secret_key,
            config=Config(retries={"total_max_attempts": 1}),
        )
    )


def test_a_queue_gives_each_message_to_one_receiver(session: boto3.Session) -> None:
    with Sqs(KEYS) as sqs, client(session, sqs) as boto:
        url = boto.create_queue(QueueName="work")["QueueUrl"]
        assert boto.get_queue_url(QueueName="work")["QueueUrl"] == url
        boto.send_message(QueueUrl=url, MessageBody=json.dumps({"key": "ü"}))
        (message,) = boto.receive_message(QueueUrl=url)["Messages"]
        assert json.loads(message["Body"]) == {"key": "ü"}
        assert "Messages" not in boto.receive_message(QueueUrl=url)
        boto.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        assert sqs.queues["work"].messages == []
        assert sqs.calls.count("ReceiveMessage") == 2


def test_a_message_that_is_not_deleted_comes_again(session: boto3.Session) -> None:
    with Sqs(KEYS) as sqs, client(session, sqs) as boto:
        url = sqs.send("work", "body")
        boto.receive_message(QueueUrl=url, VisibilityTimeout=0)
        (message,) = boto.receive_message(QueueUrl=url, WaitTimeSeconds=1)["Messages"]
        assert message["Body"] == "body"


def test_a_queue_verifies_signatures(session: boto3.Session) -> None:
    with Sqs(KEYS) as sqs, client(session, sqs, "wrong") as boto:
        url = sqs.send("work", "body")
        with pytest.raises(ClientError) as error:
            boto.receive_message(QueueUrl=url)
        assert "InvalidSignature" in error.value.response["Error"]["Code"]
        assert sqs.calls == []
    with Sqs(KEYS) as sqs, client(session, sqs) as boto, pytest.raises(ClientError) as error:
        boto.receive_message(QueueUrl=sqs.url + "/000000000000/none")
    assert "QueueDoesNotExist" in error.value.response["Error"]["Code"]


def test_the_vector_database_gives_shards() -> None:
    with vector_db() as url:
        # grpcio's client keeps descriptors for the process's life, so it gets a process.
        asked = subprocess.run([sys.executable, "-c", ASK, url], capture_output=True, text=True, check=True)
    assert asked.stdout.split() == ["NOT_FOUND", "INVALID_ARGUMENT"]


def test_the_line_server_ends_its_answers_in_four_ways() -> None:
    with LineServer({"key": b"value"}) as lines:
        address = urlsplit(lines.url)
        assert address.hostname and address.port
        with (
            socket.create_connection((address.hostname, address.port), 10) as connection,
            connection.makefile("rwb") as stream,
        ):

            def ask(line: bytes) -> None:
                stream.write(line)
                stream.flush()

            ask(b"GET key\n")
            assert stream.readline() == b"value\n"
            ask(b"FRAME key\n")
            assert stream.read(4 + 5) == struct.pack(">I", 5) + b"value"
            ask(b"RAW 1000\n")
            assert stream.read(1000) == raw(1000)
            ask(b"BYE\n")
            assert stream.read() == b"bye"
        assert lines.connections == 1
