"""Leaf package: what state is, where it lives and how it moves. Knows nothing of operators, actors or Ray.

Start reading at `keyed.contract`, then `checkpoints.storage`.
"""
