"""Bytes that last: the journal, the snapshots, and the folder that holds both. Knows nothing about queues.

disk         the seam to the operating system, durability included
frames       one entry on disk
turn         the entries that are written together
pool         empty segment files, made ahead
segments     the files of the journal, their maps
recovery     which turns count after a crash; torn tail or damage
journal      all of these together; space.py reckons
snapshots    state at one turn, in packs and manifests
directory    the data directory: identity and lock
"""
