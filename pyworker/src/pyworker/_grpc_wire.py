"""Over gRPC: what goes over the wire, as proto/workers.proto has it, and the call.

Only what a worker on a stream says and hears is here. It is described to protobuf when it is first imported, so nothing is
generated, and whatever version of protobuf is installed reads it.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, message_factory

PACKAGE = "workflow_manager.v1"
#: The stream of a worker.
WORK = f"/{PACKAGE}.Workers/Work"
DURATION = "google.protobuf.Duration"

#: Kinds of a reply.
RESULT, ERROR, PROGRESS = 0, 1, 2
KINDS = {"RESULT": RESULT, "ERROR": ERROR, "PROGRESS": PROGRESS}

#: By message: number and type of each field. "repeated" and "optional" stand before the type, as in the file.
MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "FromWorker": {
        "hello": (1, "Hello"),
        "want": (2, "Want"),
        "reply": (3, "ReplyRequest"),
        "extend": (4, "ExtendRequest"),
        "batch": (6, "FromWorkerBatch"),
    },
    "FromWorkerBatch": {"replies": (1, "repeated ReplyRequest"), "want": (2, "uint32")},
    "ToWorker": {
        "message": (1, "StepMessage"),
        "taken": (2, "Taken"),
        "lease": (3, "Lease"),
        "gone": (4, "Gone"),
        "drain": (5, "Drain"),
        "batches": (6, "Batches"),
        "batch": (7, "ToWorkerBatch"),
    },
    "Batches": {"replies_max": (1, "uint32"), "bytes_max": (2, "uint32")},
    "ToWorkerBatch": {"taken": (1, "repeated Taken"), "messages": (2, "repeated StepMessage")},
    "Hello": {
        "queues": (1, "repeated string"),
        "worker": (2, "string"),
        "lease": (3, DURATION),
        "vhost": (4, "string"),
        "batches": (5, "bool"),
    },
    "Want": {"messages": (1, "uint32")},
    "StepMessage": {
        "receipt": (1, "string"),
        "queue": (2, "string"),
        "correlation_id": (3, "string"),
        "message_id": (4, "string"),
        "workflow": (5, "string"),
        "job": (6, "string"),
        "attempt": (7, "uint32"),
        "delivery": (8, "uint32"),
        "priority": (9, "optional uint32"),
        "traceparent": (10, "string"),
        "body": (13, "bytes"),
        "depth": (14, "optional uint32"),
        "tracestate": (15, "optional string"),
    },
    "ReplyRequest": {"receipt": (1, "string"), "kind": (2, "Kind"), "body": (3, "bytes")},
    "Taken": {"receipt": (1, "string"), "changed": (2, "bool"), "why_not": (3, "string"), "detail": (4, "string")},
    "ExtendRequest": {"receipt": (1, "string"), "lease": (2, DURATION)},
    "Lease": {"receipt": (1, "string")},
    "Gone": {"receipt": (1, "string"), "reason": (2, "string")},
    "Drain": {},
}

#: Of these messages one field at a time is there.
CHOICES = {"FromWorker": "say", "ToWorker": "say"}

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {"string": _Field.TYPE_STRING, "bytes": _Field.TYPE_BYTES, "uint32": _Field.TYPE_UINT32, "bool": _Field.TYPE_BOOL}


def _describe() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="pyworker/workers.proto", package=PACKAGE, syntax="proto3")
    file.dependency.append(duration_pb2.DESCRIPTOR.name)
    kind = file.enum_type.add(name="Kind")
    for name, number in KINDS.items():
        kind.value.add(name=name, number=number)
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        if name in CHOICES:
            message.oneof_decl.add(name=CHOICES[name])
        for field_name, (number, words) in fields.items():
            *labels, type_name = words.split()
            field = message.field.add(name=field_name, number=number, label=_Field.LABEL_OPTIONAL)
            if type_name in _SCALARS:
                field.type = _SCALARS[type_name]
            else:
                field.type = _Field.TYPE_ENUM if type_name == "Kind" else _Field.TYPE_MESSAGE
                field.type_name = f".{type_name}" if "." in type_name else f".{PACKAGE}.{type_name}"
            if "repeated" in labels:
                field.label = _Field.LABEL_REPEATED
            if name in CHOICES:
                field.oneof_index = 0
            elif "optional" in labels:
                # As protoc does it: an "optional" field is alone in a choice of its own.
                field.proto3_optional = True
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field_name}")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(duration_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return pool


_POOL = _describe()
FromWorker: Any = message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.FromWorker"))
ToWorker: Any = message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.ToWorker"))


def span(seconds: float) -> dict[str, int]:
    """A Duration."""
    milliseconds = round(seconds * 1000)
    return {"seconds": milliseconds // 1000, "nanos": milliseconds % 1000 * 1_000_000}
