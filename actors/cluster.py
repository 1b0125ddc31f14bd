"""A cluster as its client sees it: connect, submit, ask, close; the same over all three actor systems.

A cluster is a first host, "head", with Dispatcher and ResourceManager, and whatever these start. `connect` makes one and `Cluster.close`
takes down what was made, in the reverse order, even after Ctrl-C: jobs, hosts, Ray itself if it was started here. With ``detached=True``
on Ray the head belongs to nobody, outlives the program, and is found again under its name.

Asking a job survives its JobManager: the Dispatcher says where the leader is now, or answers from its archive once the job has ended. All
questions here can be asked twice, so a lost answer is simply asked for again until the time is up.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
import uuid
from collections.abc import Iterator
from typing import Any, Protocol

import cloudpickle

from headrace.actors.host import HostGoneError, MachineFactory
from headrace.engine.config import ClusterSettings, JobSettings
from headrace.engine.dispatcher import Dispatcher
from headrace.engine.errors import AskTimedOutError, ClusterUnavailableError, ConfigurationError, JobError
from headrace.engine.jobgraph import JobGraph
from headrace.engine.machine import Address
from headrace.engine.messages import (
    CancelJob,
    FetchReports,
    FindJobManager,
    JobManagerFound,
    JobView,
    ListJobs,
    ReportsFetched,
    RequestFailed,
    ShutDownCluster,
    SubmitJob,
    WaitForJob,
)
from headrace.engine.resource_manager import ResourceManager
from headrace.state.identifiers import JobId

__all__ = ["Cluster", "System", "all_jobs", "cancel_job", "connect", "list_clusters"]
