"""Values as they are stored: encodings, hashes of keys, and readers that trust nothing.

A value of a user's program becomes bytes or columns here and comes back as it was. Keys get their stable hash and their
key group. Whatever is read from a disk or a network is checked here before anything is built from it.

May import: `headrace.state.errors`, `headrace.state.identifiers`. Start reading at `encoding` (values to Arrow columns
and back), then `key_groups` (who owns a key) and `plain_pickle` (pickles read as data).
"""
