"""The command `mq`: runs a broker, and looks inside one."""
