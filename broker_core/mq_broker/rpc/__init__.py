"""The gRPC shell of the broker: converts, checks, waits. It holds no rules and no state of queues."""
