from mq_wire.v1 import produce_pb2 as _produce_pb2
from mq_wire.v1 import consume_pb2 as _consume_pb2
from mq_wire.v1 import subscribe_pb2 as _subscribe_pb2
from mq_wire.v1 import admin_pb2 as _admin_pb2
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor
