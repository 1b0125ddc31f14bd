"""The simulator: all hosts in one thread, under virtual time, with a cluster's every fault, from one seed.

Start reading at `system`.
"""
