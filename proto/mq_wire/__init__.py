"""What clients and broker share: messages, the envelope of a record batch, errors, limits and names."""
