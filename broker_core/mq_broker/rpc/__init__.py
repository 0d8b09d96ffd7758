"""The gRPC server of the broker. It converts and checks requests and waits for answers. The rules and the
state of queues are in `core`.
"""
