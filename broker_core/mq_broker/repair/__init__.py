"""What `mq verify` and `mq repair` do with a data directory whose broker is stopped.

findings     what is damaged, and what that costs
labels       files that stand under another's name
replay       entries applied to a state that lacks some of those before them
inspection   reads everything there is: findings, and the state as far as it can be known
repair       what is whole goes on without what is not
directory    the same for a data directory, with its identity and lock
"""
