"""A spout: letters that are files of a folder, by their numbers, which go when they are acknowledged: FOLDER.

A message that failed is emitted again.
"""

import sys
from pathlib import Path

from by_hand import begin, command, say

context = begin()["context"]
tasks = sorted(int(task) for task, name in context["task->component"].items() if name == context["componentid"])
number = tasks.index(context["taskid"])
folder, given = Path(sys.argv[1]), set()
while True:
    told = command()
    if told["command"] == "next":
        letters = sorted(n for path in folder.iterdir() if (n := int(path.name)) % len(tasks) == number)
        n = next((n for n in letters if n not in given), None)
        if n is not None:
            given.add(n)
            say(command="emit", id=n, tuple=[n], need_task_ids=False)
    elif told["command"] == "ack":
        (folder / str(told["id"])).unlink()
    elif told["command"] == "fail":
        given.discard(told["id"])
    say(command="sync")
