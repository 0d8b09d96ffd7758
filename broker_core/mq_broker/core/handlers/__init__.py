"""One room per kind of command: it checks a command against the state, and records what is decided."""
