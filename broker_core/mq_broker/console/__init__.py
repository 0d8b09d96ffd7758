"""The command `mq`: runs a broker, and operates a running or stopped one."""
