"""Twins of what the broker stands on, for tests: of this project and of those who build on it."""
