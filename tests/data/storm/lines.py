"""A spout: lines of a file, each until it is acknowledged, which it keeps in a folder: LINES FOLDER.

A message that failed is noted, and emitted again.
"""

import sys
from pathlib import Path

from by_hand import begin, command, say

setup = begin()
context = setup["context"]
tasks = sorted(int(task) for task, name in context["task->component"].items() if name == context["componentid"])
number = tasks.index(context["taskid"])
folder = Path(sys.argv[2])
folder.mkdir(exist_ok=True)
acked = folder / f"acked-{number}"
done = set(acked.read_text().split()) if acked.exists() else set()
lines = Path(sys.argv[1]).read_text().splitlines()
to_do = [n for n in reversed(range(len(lines))) if n % len(tasks) == number and str(n) not in done]
while True:
    given = command()
    if given["command"] == "next" and to_do:
        n = to_do.pop()
        say(command="emit", id=n, tuple=[lines[n]], need_task_ids=False)
    elif given["command"] in ("ack", "fail"):
        with open(folder / f"{given['command']}ed-{number}", "a") as out:
            out.write(f"{given['id']}\n")
        if given["command"] == "fail":
            to_do.append(given["id"])
    say(command="sync")
