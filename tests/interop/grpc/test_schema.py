"""Our tables describe the official messages: every field, number, type and enum value."""

from __future__ import annotations

import base64
import json
import subprocess
from typing import Any

from google.protobuf import descriptor_pb2

from tests.interop.grpc.clients import python_environment
from verniermq.contrib.grpc.schema import CALLS, DESCRIPTION, RPCS, SHARED

PROGRAM = """
import base64, json
from google.protobuf import descriptor_pb2
from rocketmq.grpc_protocol import definition_pb2, service_pb2
files = []
for module in (definition_pb2, service_pb2):
    file = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)
    files.append(base64.b64encode(file.SerializeToString()).decode())
print(json.dumps(files))
"""
NEWER = {"Settings.client_properties", "Code.INVALID_CLIENT_PROPERTIES"}
"""Of 2026, which the official package does not have yet."""


def fields(messages: Any) -> dict[str, tuple[Any, ...]]:
    """``Message.field`` → number, label, type, type name, oneof, and whether it has a presence of its own."""
    found = {}
    for message in messages:
        choices = [choice.name for choice in message.oneof_decl]
        for field in message.field:
            choice = choices[field.oneof_index] if field.HasField("oneof_index") else ""
            found[f"{message.name}.{field.name}"] = (
                field.number, field.label, field.type, field.type_name, choice, field.proto3_optional,
            )  # fmt: skip
    return found


def values(enums: Any) -> dict[str, int]:
    return {f"{enum.name}.{value.name}": value.number for enum in enums for value in enum.value}


def test_the_tables_describe_the_official_messages() -> None:
    done = subprocess.run([str(python_environment()), "-c", PROGRAM], capture_output=True, text=True, check=True)
    official = [
        descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text)) for text in json.loads(done.stdout)
    ]
    messages = {message.name: message for file in official for message in file.message_type}
    enums = [enum for file in official for enum in file.enum_type]
    nested = [enum for message in messages.values() for enum in message.enum_type]
    ours = DESCRIPTION

    theirs = fields([messages[name] for name in (*SHARED, *CALLS)])
    described = fields(ours.message_type)
    assert {name: described[name] for name in theirs} == theirs
    assert described.keys() - theirs.keys() <= NEWER
    their_values = values(enums)
    our_values = values(ours.enum_type)
    assert {name: our_values.get(name) for name in their_values} == their_values
    assert our_values.keys() - their_values.keys() <= NEWER
    assert values(nested) == values(enum for message in ours.message_type for enum in message.enum_type)

    (service,) = (service for file in official for service in file.service)
    calls = {
        method.name: " ".join(
            ("*" if streams else "") + kind.rpartition(".")[2]
            for kind, streams in (
                (method.input_type, method.client_streaming),
                (method.output_type, method.server_streaming),
            )
        )
        for method in service.method
    }
    assert {name: calls[name] for name in RPCS} == RPCS
    assert calls.keys() - RPCS.keys() == {"PullMessage", "UpdateOffset", "GetOffset", "QueryOffset"}
