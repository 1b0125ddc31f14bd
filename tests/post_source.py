"""A source that acknowledges as somebody else would write it, its service, and ways to get it wrong."""

from __future__ import annotations

import sys
import threading

import cloudpickle

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import NOTHING_NOW, Discovery, Polled, SourceReader, Split
from headrace.engine.errors import SourceError

cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Post:
    """Queues of letters; what a connection was given is given to others once that is closed. It may be away.

    Connections may be of different threads.
    """

    posts = {}

    def __init__(self, name, num_queues=3):
        self.queues = [[] for _ in range(num_queues)]
        # By number of a connection what it was given and has not acknowledged; the others are closed, or broken.
        self.open = {}
        self.num_connections = 0
        self.is_away = False
        self.lock = threading.RLock()
        self.posts[name] = self

    def send(self, letters):
        with self.lock:
            for letter in letters:
                self.queues[letter % len(self.queues)].append(letter)

    def connect(self):
        with self.lock:
            self.num_connections += 1
            self.open[self.num_connections] = []
            return self.num_connections

    def take(self, connection, queue, number):
        with self.lock:
            self.check(connection)
            given, self.queues[queue] = self.queues[queue][:number], self.queues[queue][number:]
            self.open[connection] += [(queue, letter) for letter in given]
            return given

    def acknowledge(self, connection, letters):
        with self.lock:
            self.check(connection)
            done = set(letters)
            self.open[connection] = [one for one in self.open[connection] if one[1] not in done]

    def close(self, connection):
        with self.lock:
            for queue, letter in reversed(self.open.pop(connection, [])):
                self.queues[queue].insert(0, letter)

    def check(self, connection):
        if self.is_away or connection not in self.open:
            message = "the post is away"
            raise SourceError(message)

    def num_left(self):
        with self.lock:
            return sum(map(len, self.queues)) + sum(map(len, self.open.values()))

    def stop(self):
        with self.lock:
            self.is_away = True
            for connection in list(self.open):
                self.close(connection)

    def start(self):
        self.is_away = False


class PostSource:
    is_bounded = False

    def __init__(self, name, reader=None, most_open=1_000):
        self.name, self.reader, self.most_open = name, reader or PostReader, most_open

    def create_reader(self):
        return self.reader(self)

    def create_enumerator(self, context):
        return PostEnumerator(self.name)


class PostEnumerator:
    discovery_interval_ms = None

    def __init__(self, name):
        self.name = name

    def discover(self):
        from post_source import Post  # the one that has the posts

        queues = range(len(Post.posts[self.name].queues))
        return Discovery([Split(str(queue), position=[]) for queue in queues], is_final=True, is_repeatable=True)


class PostReader(SourceReader):
    """Keeps in its position all that it has ever given, and acknowledges what a complete checkpoint holds."""

    def __init__(self, source):
        self.name, self.most_open = source.name, source.most_open

    def open(self, context):
        from post_source import Post

        self.post, self.connection = Post.posts[self.name], None
        self.known = {}
        # What was taken and is not acknowledged: (the checkpoint that holds it or None, letter).
        self.unacknowledged = []

    def add_splits(self, splits):
        for split in splits:
            self.known[split.split_id] = set(split.position)

    def poll(self, max_records):
        if self.connection is None:
            self.connection = self.post.connect()
        found = []
        for queue, known in self.known.items():
            letters = self.post.take(self.connection, int(queue), min(max_records, self.room()))
            self.unacknowledged += [(None, letter) for letter in letters]
            new = [letter for letter in letters if self.is_new(letter, known)]
            known.update(new)
            if new:
                found.append(Polled(queue, Batch.of_rows(new)))
        return found or NOTHING_NOW

    def room(self):
        return self.most_open - len(self.unacknowledged)

    def is_new(self, letter, known):
        return letter not in known

    def snapshot(self):
        raise NotImplementedError

    def snapshot_for(self, checkpoint_id):
        self.unacknowledged = [(held or checkpoint_id, letter) for held, letter in self.unacknowledged]
        return [Split(queue, position=sorted(known)) for queue, known in self.known.items()]

    def notify_checkpoint_complete(self, checkpoint_id):
        self.acknowledge([one for one in self.unacknowledged if one[0] is not None and one[0] <= checkpoint_id])

    def acknowledge(self, some):
        if not some:
            return
        self.post.acknowledge(self.connection, [letter for _, letter in some])
        self.unacknowledged = [one for one in self.unacknowledged if one not in some]

    def close(self):
        self.post.close(self.connection)


# ----------------------------------------------------------------------------------------------------- ways to be wrong
class AcknowledgesAtOnce(PostReader):
    def poll(self, max_records):
        found = super().poll(max_records)
        self.acknowledge(list(self.unacknowledged))
        return found


class AcknowledgesItsSnapshot(PostReader):
    def snapshot_for(self, checkpoint_id):
        splits = super().snapshot_for(checkpoint_id)
        self.notify_checkpoint_complete(checkpoint_id)
        return splits


class AcknowledgesAllThere(PostReader):
    """Also what was read behind the checkpoint."""

    def notify_checkpoint_complete(self, checkpoint_id):
        self.acknowledge(list(self.unacknowledged))


class NeverAcknowledges(PostReader):
    def notify_checkpoint_complete(self, checkpoint_id):
        pass


class KnowsNothing(PostReader):
    def is_new(self, letter, known):
        return True


class ForgetsWhatItKnows(PostReader):
    def snapshot_for(self, checkpoint_id):
        return [Split(split.split_id, position=[]) for split in super().snapshot_for(checkpoint_id)]


class LeavesWhatItKnows(PostReader):
    """What comes again is known, and never acknowledged."""

    def poll(self, max_records):
        before = {queue: set(known) for queue, known in self.known.items()}
        found = super().poll(max_records)
        old = set().union(*before.values())
        self.unacknowledged = [one for one in self.unacknowledged if one[0] is not None or one[1] not in old]
        return found


class KnowsWhatItNeverGave(PostReader):
    """What no checkpoint holds is taken for known when it comes again."""

    forever = set()

    def is_new(self, letter, known):
        from post_source import KnowsWhatItNeverGave as Kept

        is_new = (self.name, letter) not in Kept.forever
        Kept.forever.add((self.name, letter))
        return is_new


class TakesMoreThanItMay(PostReader):
    def room(self):
        return 1_000


class StopsWhereItMayTakeNoMore(PostReader):
    def room(self):
        return self.most_open - sum(map(len, self.known.values()))
