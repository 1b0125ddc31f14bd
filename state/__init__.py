"""Leaf package: what state is, where it lives and how it moves. Knows nothing of operators, actors or Ray.

May import: nothing of `headrace` outside it. Start reading at `keyed.contract`, then `checkpoints.storage`.
"""
