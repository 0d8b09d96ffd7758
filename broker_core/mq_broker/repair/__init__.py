"""`mq verify` and `mq repair`: finding and removing damage in the data directory of a stopped broker.

findings     each damage, and what is lost by it
labels       files that have the name of another file
salvage      reading damaged segments and snapshots
gaps         what is missing in a state that lacks entries
replay       applying entries to a state that lacks earlier ones
inspection   reading everything: the findings, and the state as far as it is known
aftermath    removing lost rows from the state, and skipping numbers that may have been used
repair       the repair: damaged parts go to quarantine, the rest is kept
directory    verifying and repairing a data directory, with its identity and lock
"""
