"""The plain Python client: connections, producers, consumers, and what the Spark half stands on. No Spark."""
