"""The messages of ms_service.proto, made at run time: generated code would tie us to one protobuf version."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "mindspore.serving.proto"
SERVICE = f"{PACKAGE}.MSService"

DATA_TYPES = (
    "MS_UNKNOWN MS_BOOL MS_INT8 MS_UINT8 MS_INT16 MS_UINT16 MS_INT32 MS_UINT32 MS_INT64 MS_UINT64 MS_FLOAT16 "
    "MS_FLOAT32 MS_FLOAT64 MS_STRING MS_BYTES"
).split()

# message: (field, number, type); a type is a scalar, a message, "repeated T", "map T" or "oneof T".
_MESSAGES: dict[str, list[tuple[str, int, str]]] = {
    "ServableSpec": [("name", 1, "string"), ("version_number", 3, "uint64"), ("method_name", 2, "string")],
    "TensorShape": [("dims", 1, "repeated int64")],
    "ShmTensorData": [
        ("memory_key", 1, "string"),
        ("bytes_size", 2, "uint64"),
        ("data_offset", 3, "uint64"),
        ("data_size", 4, "uint64"),
    ],
    "Tensor": [
        ("shape", 1, "TensorShape"),
        ("dtype", 2, "DataType"),
        ("data", 3, "oneof bytes"),
        ("shm_data", 5, "oneof ShmTensorData"),
        ("bytes_val", 4, "repeated bytes"),
    ],
    "Instance": [("items", 1, "map Tensor"), ("output_buffers", 2, "map ShmTensorData")],
    "ErrorMsg": [("error_code", 1, "int64"), ("error_msg", 2, "bytes")],
    "PredictRequest": [("servable_spec", 1, "ServableSpec"), ("instances", 2, "repeated Instance")],
    "PredictReply": [
        ("servable_spec", 1, "ServableSpec"),
        ("instances", 3, "repeated Instance"),
        ("error_msg", 4, "repeated ErrorMsg"),
    ],
}
_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
    "int64": _Field.TYPE_INT64,
    "uint64": _Field.TYPE_UINT64,
}


def file_descriptor() -> descriptor_pb2.FileDescriptorProto:
    """What protoc makes of ms_service.proto."""
    file = descriptor_pb2.FileDescriptorProto(name="ms_service.proto", package=PACKAGE, syntax="proto3")
    enum = file.enum_type.add(name="DataType")
    for number, name in enumerate(DATA_TYPES):
        enum.value.add(name=name, number=number)
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            _add_field(message, field, number, kind)
    service = file.service.add(name="MSService")
    service.method.add(name="Predict", input_type=f".{PACKAGE}.PredictRequest", output_type=f".{PACKAGE}.PredictReply")
    return file


def _add_field(message: Any, name: str, number: int, kind: str) -> None:
    label, _, base = kind.rpartition(" ")
    repeated = label in ("repeated", "map")
    field = message.field.add(name=name, number=number, json_name=_json_name(name))
    field.label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
    if label == "map":
        entry = message.nested_type.add(name=_json_name(name)[0].upper() + _json_name(name)[1:] + "Entry")
        entry.options.map_entry = True
        _add_field(entry, "key", 1, "string")
        _add_field(entry, "value", 2, base)
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{PACKAGE}.{message.name}.{entry.name}"
        return
    if label == "oneof":
        if not message.oneof_decl:
            message.oneof_decl.add(name="tensor_data")
        field.oneof_index = 0
    if base in _SCALARS:
        field.type = _SCALARS[base]
    else:
        field.type = _Field.TYPE_ENUM if base == "DataType" else _Field.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{base}"


def _json_name(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


# The default pool, because that is where reflection looks.
_pool = descriptor_pool.Default()
_pool.AddSerializedFile(file_descriptor().SerializeToString())


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))


PredictRequest = _message("PredictRequest")
PredictReply = _message("PredictReply")
Instance = _message("Instance")
Tensor = _message("Tensor")
