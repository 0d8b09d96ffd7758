"""Everything on disk: the journal, the snapshots, and the data directory. Nothing here knows about queues.

disk         the interface to the operating system, durability included
frames       the layout of one entry on disk
turn         the entries that are written and synced together
pool         empty segment files, filled in advance
segments     the files of the journal, and their memory maps
recovery     which turns count after a crash; torn tail or damage
journal      the journal itself; space.py has its figures
packs        the files of a snapshot
snapshots    the state at one turn, in packs and manifests
directory    the data directory: identity, lock and folders
"""
