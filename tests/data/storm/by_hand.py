"""The multi-lang protocol spoken by hand, for programs of tests that need nothing else."""

import json
import os
import sys
from collections import deque

_waiting = deque()


def read():
    text = ""
    while line := sys.stdin.readline():
        if line.strip() == "end":
            return json.loads(text)
        text += line
    sys.exit(0)


def say(**message):
    print(json.dumps(message))
    print("end", flush=True)


def begin():
    """Shake hands; gives what the program is told."""
    setup = read()
    say(pid=os.getpid())
    open(os.path.join(setup["pidDir"], str(os.getpid())), "w").close()
    return setup


def command():
    """What comes next; heartbeats are answered."""
    while True:
        found = _waiting.popleft() if _waiting else read()
        if isinstance(found, dict) and found.get("stream") == "__heartbeat":
            say(command="sync")
        else:
            return found


def emit(values, **more):
    """Emit, and give the tasks that get it."""
    say(command="emit", tuple=values, **more)
    while not isinstance(found := read(), list):
        _waiting.append(found)
    return found
