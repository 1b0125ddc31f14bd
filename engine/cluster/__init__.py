"""The machines of a cluster: Dispatcher, ResourceManager, TaskManager, and the election of a leader.

May import: every room of the engine but `headrace.engine.plan`. Start reading at `dispatcher`.
"""
