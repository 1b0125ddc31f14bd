"""The machines of a cluster: Dispatcher, ResourceManager, TaskManager, and the election of a leader.

May import: every room of the engine but those of data sets (`plan`, `partitions`, `optimizer`).
Start reading at `dispatcher`.
"""
