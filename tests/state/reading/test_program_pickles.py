"""Pickles of programs: reading changes nothing that a process has already; code keeps the name of its file.

Families: differential (what cloudpickle itself would make of it), crash (a class that is read for the first time).
"""

import enum
import pickle
import subprocess
import sys

import cloudpickle

from headrace.state.backends.rocksdb.row_encoding import encode_key
from headrace.state.keys.hashing import hash_key
from headrace.state.reading.program_pickles import dump_program, load_program

SCRIPT = """
import enum
seen = []
class Function:
    '''Doc.'''
    calls = []
    def map(self, value):
        seen.append(value)
        self.calls.append(value)
        return type(self).calls is Function.calls
class Color(enum.Enum):
    RED = 1
    def shout(self):
        return self.name + "!"
def function(value):
    seen.append(value)
    return len(seen)
"""


def program() -> dict[str, object]:
    """What a script defines: nobody can import it, so it goes by value."""
    names: dict[str, object] = {"__name__": "__main__"}
    exec(SCRIPT, names)
    return names


def test_a_class_that_is_there_stays_what_it_is():
    names = program()
    made = names["Function"]
    pickled = cloudpickle.dumps([made()])
    before = dict(vars(made))
    [read] = load_program(pickled)
    assert type(read) is made
    assert dict(vars(made)) == before
    assert made.map.__globals__ is names
    assert read.map(3)
    assert names["seen"] == made.calls == [3]


def test_plain_pickle_would_have_changed_it():
    """The trap itself: if cloudpickle is mended one day, nothing of this is needed any more."""
    names = program()
    before = names["Function"].map
    pickle.loads(cloudpickle.dumps(names["Function"]()))
    assert names["Function"].map is not before


def test_a_function_is_read_anew_with_globals_of_its_own():
    names = program()
    pickled = cloudpickle.dumps([names["function"], names["function"]])
    names["seen"].append("later")
    for _ in range(2):
        one, other = load_program(pickled)
        assert (one(1), other(2)) == (1, 2), "within one pickle they share what they refer to"
    assert names["seen"] == ["later"]


def test_members_of_an_enum_are_the_same_objects():
    names = program()
    color = names["Color"]
    [read] = load_program(cloudpickle.dumps([color.RED]))
    assert read is color.RED
    assert read.shout() == "RED!"
    assert isinstance(color, enum.EnumMeta)


def test_out_of_band_buffers_are_taken():
    names = program()
    buffers: list[pickle.PickleBuffer] = []
    value = [names["Function"](), pickle.PickleBuffer(bytearray(b"abc"))]
    pickled = cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    read = load_program(memoryview(pickled), buffers=[buffer.raw() for buffer in buffers])
    assert type(read[0]) is names["Function"]
    assert bytes(read[1]) == b"abc"


def test_tracebacks_in_another_process_show_the_lines_of_the_program(tmp_path):
    """cloudpickle 3.1.3 and later write ``<dynamic-code>`` for the names of all files."""
    script = tmp_path / "a script.py"
    script.write_text(
        "class Function:\n"
        "    def map(self, value):\n"
        "        return [1 // one for one in value]  # of a method\n"
        "def outer():\n"
        "    def inner(value):\n"
        "        return Function().map(value)  # of a function within another\n"
        "    return inner\n"
    )
    names = {"__name__": "__main__"}
    exec(compile(script.read_text(), str(script), "exec"), names)
    pickled = dump_program(names["outer"]())
    assert pickled == dump_program(names["outer"]())
    reader = (
        "import sys, traceback\n"
        "from headrace.state.reading.program_pickles import dump_program, load_program\n"
        "function = load_program(dump_program(load_program(sys.stdin.buffer.read())))\n"
        "try:\n"
        "    function([0])\n"
        "except ZeroDivisionError:\n"
        "    traceback.print_exc(file=sys.stdout)\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", reader], input=pickled, capture_output=True, check=True
    ).stdout.decode()
    assert f'File "{script}", line 6, in inner' in shown
    assert "# of a function within another" in shown
    assert f'File "{script}", line 3, in' in shown
    assert "# of a method" in shown


def test_another_process_gets_whole_classes_and_keeps_the_first():
    names = program()
    first = cloudpickle.dumps([names["Function"](), names["Color"].RED])
    names["Function"].calls.append("changed")
    second = cloudpickle.dumps([names["Function"](), names["Color"].RED])
    reader = (
        "import sys, pickle\n"
        "from headrace.state.reading.program_pickles import load_program\n"
        "first, second = pickle.load(sys.stdin.buffer)\n"
        "(one, red), (other, same) = load_program(first), load_program(second)\n"
        "assert type(one) is type(other) and red is same\n"
        "assert one.map(1) and other.map(2) and one.calls == [1, 2], one.calls\n"
        "assert type(one).__doc__ == 'Doc.' and red.shout() == 'RED!'\n"
    )
    done = subprocess.run([sys.executable, "-c", reader], input=pickle.dumps((first, second)), capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


BARE = """
import abc, enum
class Shape(abc.ABC):
    pass
class Square:
    pass
Shape.register(Square)
class Told:
    '''Doc.'''
class Listed:
    def __init_subclass__(cls):
        cls.names = []
class Member(Listed):
    pass
Member.names = ["a"]
class Size(enum.Enum):
    SMALL = 1
def answer():
    return isinstance(Square(), Shape), Told.__doc__, Member.names, Size(1) is Size.SMALL
"""


def test_what_is_registered_with_a_class_may_go_and_come_again():
    """An abstract class holds weakly what is registered with it: a search for garbage may take that alone."""
    names = {"__name__": "__main__"}
    exec(BARE, names)
    answer = cloudpickle.dumps(names["answer"])
    reader = (
        "import gc, sys\n"
        "from headrace.state.reading.program_pickles import load_program\n"
        "answer = sys.stdin.buffer.read()\n"
        "shape = load_program(answer).__globals__['Shape']\n"
        "gc.collect()\n"
        "again = load_program(answer)\n"
        "assert again.__globals__['Shape'] is shape\n"
        "assert again() == (True, 'Doc.', ['a'], True), again()\n"
    )
    done = subprocess.run([sys.executable, "-c", reader], input=answer, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def test_classes_that_look_whole_when_they_are_begun_are_filled():
    """An abstract class of which others are registered has nothing else of its own, for example."""
    names = {"__name__": "__main__"}
    exec(BARE, names)
    answer = cloudpickle.dumps(names["answer"])
    reader = (
        "import sys\n"
        "from headrace.state.reading.program_pickles import load_program\n"
        "answer = sys.stdin.buffer.read()\n"
        "for _ in range(2):\n"
        "    assert load_program(answer)() == (True, 'Doc.', ['a'], True), load_program(answer)()\n"
    )
    done = subprocess.run([sys.executable, "-c", reader], input=answer, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    assert load_program(answer)() == names["answer"]() == (True, "Doc.", ["a"], True)


def test_classes_of_a_script_are_the_same_ones_in_every_run_of_it_and_others_in_another(tmp_path):
    """Keys that a savepoint of one run holds are those of the records of the next."""
    text = """
import sys
from dataclasses import dataclass
from headrace.state.reading.program_pickles import dump_program
@dataclass(frozen=True)
class Customer:
    name: str
first = Customer
def again():
    global Customer
    @dataclass(frozen=True)
    class Customer:
        name: str
    Customer.__qualname__ = "Customer"
made = dump_program(Customer("ann"))
again()
parts = made, dump_program(Customer("ann")), dump_program(first("ann"))
sys.stdout.buffer.write(b"".join(len(part).to_bytes(4, "big") + part for part in parts))
"""

    def keys_of_run(name, content):
        script = tmp_path / name
        script.write_text(content)
        written = subprocess.run([sys.executable, str(script)], capture_output=True, check=True).stdout
        found = []
        while written:
            length = int.from_bytes(written[:4], "big")
            found.append(load_program(written[4 : 4 + length]))
            written = written[4 + length :]
        return found

    one, two = keys_of_run("one.py", text), keys_of_run("two.py", text)
    (changed, *_) = keys_of_run("changed.py", text + "# changed")
    assert one[0] == one[2] == two[0]
    assert type(one[0]) is type(two[0])
    assert one[1] not in (one[0], two[1]), "one that is defined again is another class"
    assert changed != one[0]


def test_a_class_has_its_full_name_in_every_process():
    """It is part of the hash of a key: by the last part alone one key would have two subtasks."""
    script = """
import sys
from dataclasses import dataclass
from headrace.state.backends.rocksdb.row_encoding import encode_key
from headrace.state.keys.hashing import hash_key
from headrace.state.reading.program_pickles import dump_program
class Shop:
    @dataclass(frozen=True)
    class Customer:
        name: str
def customer_of(name):
    @dataclass(frozen=True)
    class Customer:
        name: str
    return Customer(name)
keys = [Shop.Customer("ann"), customer_of("bob")]
sys.stdout.buffer.write(dump_program([(key, hash_key(key), encode_key(key)) for key in keys]))
"""
    written = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout
    found = load_program(written)
    names = [type(key).__qualname__ for key, _, _ in found]
    assert names == ["Shop.Customer", "customer_of.<locals>.Customer"]
    assert [(hash_key(key), encode_key(key)) for key, _, _ in found] == [(known, data) for _, known, data in found]
