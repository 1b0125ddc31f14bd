"""Keys: their hash, which is the same everywhere and for ever, and the subtask that owns them.

`key_groups` says who owns a key by its hash; `hashing` hashes Python keys, `column_hashing` columns of them, both by
`mixing`. `key_classes` sees whether a program still has the classes that a checkpoint's keys are of.

May import: `headrace.state.values` and the rooms below it. Start reading at `key_groups`, then `hashing`.
"""
