"""A component that breaks the rules in the way that it is asked for: WAY [FOLDER]."""

import os
import subprocess
import sys
import time
from pathlib import Path

from by_hand import begin, command, say

way = sys.argv[1]
if way == "never says its id":
    sys.exit("no such luck")
begin()
if way == "stays":
    # Reads nothing, so that it does not notice the end of its input; so does a child of it.
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(sys.argv[2], "pids").write_text(f"{os.getpid()} {child.pid}")
    time.sleep(600)
while True:
    given = command()
    if way == "dies":
        print("about to die", file=sys.stderr)
        say(command="log", msg="my last words")
        os.kill(os.getpid(), 9)
    elif way == "ends":
        sys.exit(3)
    elif way == "prints":
        print("hello")
        print("end", flush=True)
    elif way == "hangs":
        time.sleep(600)
    elif way == "acks what it was not given":
        say(command="ack", id="77")
    elif way == "emits too many values":
        say(command="emit", tuple=[1, 2], need_task_ids=False)
    elif way == "says nonsense":
        say(command="dance")
