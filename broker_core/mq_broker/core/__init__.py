"""The rules of the broker, without I/O: commands in, entries and replies out. Time, randomness and disk are
arguments.

`broker.Broker` is the door. A handler (publishing, staging, sessions, ranges, admin) checks a command against
the state and records entries; `apply.py` alone changes durable state, live and at recovery alike.
"""
