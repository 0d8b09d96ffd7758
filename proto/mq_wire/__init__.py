"""What travels between clients and broker: messages, the envelope of a record batch, errors, limits,
names.
"""
