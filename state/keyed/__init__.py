"""What state is, for programs and for backends: descriptors, handles, declared types, time to live.

`contract` is what a backend must offer; `kinds` says what a kind of state is, `descriptors` which there are, `layouts`
how their values are made of parts; `declarations` is what all backends share; `evolution` decides whether stored
values can become what a program now declares.

May import: the rooms of `headrace.state` for values, files and checkpoints. Start reading at `contract`.
"""
