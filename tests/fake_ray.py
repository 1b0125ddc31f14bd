"""Ray as our actor code sees it, without processes: what each call of an actor answers is said by the test.

It keeps to the parts of Ray's contract that are used: ``remote`` returns at once, a future ends with a value or with
one of `ray.exceptions`, and names find handles. `ActorUnavailableError` is the answer of an actor of which nobody
knows whether it has heard the call: it lives on. `ActorDiedError` is the end.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError

from headrace.actors.ray import host as ray_host
from headrace.actors.ray import system as ray_system

HERE = "node-here"


def unavailable() -> ActorUnavailableError:
    return ActorUnavailableError("a connection was reset", None)


def died() -> ActorDiedError:
    return ActorDiedError()


class _Reference:
    def __init__(self) -> None:
        self.answer: Future[Any] = Future()

    def future(self) -> Future[Any]:
        return self.answer


class FakeHandle:
    """An actor as its callers hold it.

    Attributes:
        calls: Method and arguments of every call, oldest first.
        pending: Calls without an answer, by method; end them with `end`.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.pending: dict[str, deque[_Reference]] = {}
        self._answers: dict[str, deque[Any]] = {}

    def answers(self, method: str, *values: Any) -> None:
        """Say anew what the next calls of a method give: a value, or an exception to fail with."""
        self._answers[method] = deque(values)

    def end(self, method: str, value: Any) -> None:
        """End the oldest call of a method that has no answer."""
        _end(self.pending[method].popleft(), value)

    def num_calls(self, method: str) -> int:
        return sum(called == method for called, _ in self.calls)

    def __getattr__(self, method: str) -> Any:
        def remote(*arguments: Any) -> _Reference:
            self.calls.append((method, arguments))
            reference = _Reference()
            answers = self._answers.get(method)
            if answers:
                _end(reference, answers.popleft())
            else:
                self.pending.setdefault(method, deque()).append(reference)
            return reference

        return SimpleNamespace(remote=remote)


def _end(reference: _Reference, value: Any) -> None:
    if isinstance(value, BaseException):
        reference.answer.set_exception(value)
    else:
        reference.answer.set_result(value)


class FakeRay:
    """The module.

    Attributes:
        handles: Named actors.
        made: Handles that the next actors to be made will have.
        killed: Handles of actors that Ray was asked to kill.
    """

    method = staticmethod(lambda **_options: lambda function: function)

    def __init__(self) -> None:
        self.handles: dict[str, FakeHandle] = {}
        self.made: deque[FakeHandle] = deque()
        self.killed: list[FakeHandle] = []
        # What looking up a name fails with, if it does.
        self.lookup_error: Exception | None = None

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: HERE)

    def is_initialized(self) -> bool:
        return True

    def get(self, reference: _Reference, timeout: float) -> Any:
        return reference.answer.result(timeout)

    def get_actor(self, name: str, namespace: str) -> FakeHandle:
        if self.lookup_error is not None:
            raise self.lookup_error
        try:
            return self.handles[name]
        except KeyError:
            message = f"no actor named {name!r} in {namespace!r}"
            raise ValueError(message) from None

    def kill(self, handle: FakeHandle, *, no_restart: bool) -> None:
        assert no_restart
        self.killed.append(handle)

    def make(self, name: str, **_options: Any) -> Any:
        """Instead of ``actor_class.options(...)``."""

        def remote(_spec: Any) -> FakeHandle:
            self.handles[name] = self.made.popleft()
            return self.handles[name]

        return SimpleNamespace(remote=remote)


@pytest.fixture
def fake_ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    """Put it in Ray's place, for the client's side and for what runs in actors."""
    fake = FakeRay()
    for module in (ray_host, ray_system):
        monkeypatch.setattr(module, "ray", fake)
    monkeypatch.setattr(ray_host, "_actor_class", lambda: SimpleNamespace(options=fake.make))
    return fake
