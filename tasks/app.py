"""The Celery application: all of its configuration, queues, routes, tasks and the beat schedule.

Celery carries hints from process to process and shows them in Flower; what is true stands in the ledger. So there is
no result backend, no canvas, no ETA and no retry of Celery's, and nothing here decides anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from secrets import token_hex
from typing import Any

from celery import Celery
from kombu import Exchange, Queue

from ..config.settings import Settings
from .transport import GuardedAMQP
from .wire import CONTROL, SCAN, kind_name

__all__ = ["KINDS", "SCAN", "App", "Executor", "Scan", "Unknown", "hard_limit", "make_app", "worker_argv"]

KINDS = (
    "start",
    "timer",
    "signal",
    "approval",
    "child",
    "advance",
    "cancel",
)  # they execute nothing, they advance the flow
EXCHANGE = "safepoint"
DEAD = "safepoint.dead"  # what the gate refused, on RabbitMQ
MARGIN = 120.0  # seconds: a commit waits this long for a ledger that is away before the pool kills its process
KIND_TIMEOUT = 60.0  # seconds: claim, advance and commit of a step that executes nothing

Executor = Callable[[str, str, str, Any], object]  # run, step, lane, Celery's request
Scan = Callable[[], object]
Unknown = Callable[[str, str, str], object]  # run, step, lane of a step that this worker does not know


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the tasks call: nothing of it knows Celery."""

    executor: Executor | None
    scan: Scan | None
    unknown: Unknown | None


class App(Celery):
    """A Celery app that knows its lanes and what its tasks call."""

    # The class and not its name: two threads that import by name at once may each find the other's half of a module.
    amqp_cls = GuardedAMQP  # type: ignore[assignment]  # Celery takes either; the stubs know names alone
    hooks: Hooks
    lanes: Mapping[str, str]  # lane -> queue


def make_app(
    settings: Settings,
    broker_url: str,
    *,
    steps: Mapping[str, float] | None = None,
    executor: Executor | None = None,
    scan: Scan | None = None,
    unknown: Unknown | None = None,
) -> App:
    """Make an app for a broker; `steps` are the steps it can execute, with their timeouts in seconds."""
    steps = steps or {}
    longest = max([KIND_TIMEOUT, *steps.values()])
    app = App("safepoint", set_as_current=False)
    app.hooks = Hooks(executor=executor, scan=scan, unknown=unknown)
    app.lanes = {name: lane.queue for name, lane in settings.lanes.items()}
    app.conf.update(configuration(settings, broker_url, longest=longest))
    in_place = _inline_slice(settings) > 0  # then a task may end up in any other step
    for name, timeout in {**{kind_name(kind): KIND_TIMEOUT for kind in KINDS}, **steps}.items():
        _register_step(app, name, time_limit=hard_limit(settings, longest if in_place else timeout))
    _register_scan(app, time_limit=hard_limit(settings, KIND_TIMEOUT))
    return app


def _register_step(app: App, name: str, *, time_limit: int) -> None:
    executor = app.hooks.executor

    @app.task(name=name, bind=True, shared=False, lazy=False, time_limit=time_limit)
    def execute(self: Any, *, run: str, step: str, lane: str) -> object:
        if executor is None:
            raise RuntimeError(f"this app only publishes; it cannot execute {name}")
        return executor(run, step, lane, self.request)


def _register_scan(app: App, *, time_limit: int) -> None:
    scan = app.hooks.scan

    # Without events: one a second would push the steps off Flower's first page.
    @app.task(name=SCAN, send_events=False, shared=False, lazy=False, time_limit=time_limit)
    def run_scan() -> object:
        return scan() if scan is not None else None


def _inline_slice(settings: Settings) -> float:
    return max((lane.inline_slice for lane in settings.lanes.values()), default=0.0)


def hard_limit(settings: Settings, timeout: float) -> int:
    """Return after how many seconds the pool kills a process: long after the ledger gave its step away (P31)."""
    return ceil(timeout + settings.worker.step_grace + _inline_slice(settings) + MARGIN)


def queues(settings: Settings, broker_url: str) -> tuple[Queue, ...]:
    """Return one durable queue a lane, named by the lane's policy."""
    arguments = None
    if broker_url.startswith("amqp"):
        arguments = {"x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}
    names = [lane.queue for lane in settings.lanes.values()]
    return tuple(Queue(name, Exchange(EXCHANGE), routing_key=name, queue_arguments=arguments) for name in names)


def dead_queue() -> Queue:
    """Return the queue of refused messages: bounded, because whoever sends rubbish may send a lot of it."""
    arguments = {"x-max-length": 1000, "x-overflow": "drop-head", "x-message-ttl": 7 * 86_400_000}
    return Queue(DEAD, Exchange(EXCHANGE), routing_key=DEAD, queue_arguments=arguments)


def configuration(settings: Settings, broker_url: str, *, longest: float) -> dict[str, Any]:
    """Return every setting of Celery's that differs from its default, for a longest step timeout in seconds."""
    limit = hard_limit(settings, longest)
    control = settings.lanes[CONTROL].queue if CONTROL in settings.lanes else CONTROL
    return {
        "broker_url": celery_url(broker_url),
        "broker_transport_options": transport_options(broker_url, limit=limit),
        "broker_connection_timeout": 5,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,  # a worker outlives any outage of its broker
        "broker_channel_error_retry": True,  # else RabbitMQ's consumer_timeout ends the worker
        "broker_pool_acquire_timeout": 10,
        "task_queues": queues(settings, broker_url),
        "task_default_queue": control,
        "task_default_exchange": EXCHANGE,
        "task_create_missing_queues": False,
        "task_routes": {SCAN: {"queue": control}},
        "task_serializer": "json",
        "accept_content": ["json"],
        "task_ignore_result": True,
        "result_backend": None,
        "result_expires": None,  # with it, beat would send celery.backend_cleanup
        "task_acks_late": True,
        "task_acks_on_failure": True,
        "task_acks_on_timeout": True,
        "task_reject_on_worker_lost": True,
        "task_retry_on_worker_lost": False,
        "task_send_sent_event": True,
        "task_publish_retry": False,
        "worker_consumer": "safepoint.tasks.gate:GatedConsumer",
        "worker_prefetch_multiplier": 1,
        "worker_eta_task_limit": 100,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "worker_enable_prefetch_count_reduction": False,
        "worker_send_task_events": True,
        "worker_proc_alive_timeout": 30,
        "worker_lost_wait": 1.0,  # what was handed to a child as it died goes back soon, not after 10 s
        "worker_soft_shutdown_timeout": settings.worker.drain,
        "worker_enable_soft_shutdown_on_idle": True,
        "beat_schedule": beat_schedule(settings, queue=control),
        "beat_scheduler": "safepoint.tasks.beat:ChoreScheduler",
        "timezone": "UTC",
    }


def beat_schedule(settings: Settings, *, queue: str) -> dict[str, Any]:
    """Return what beat sends. A chore that nobody took for a while is void, so that a backlog of them stays short."""
    interval = settings.scan.interval
    # Ten intervals: less would be lost between machines whose clocks differ by a second or two.
    options = {"queue": queue, "expires": max(10.0, 10 * interval)}
    return {SCAN: {"task": SCAN, "schedule": interval, "options": options}}


def celery_url(url: str) -> str:
    """Return a broker URL with a scheme that kombu knows: Valkey speaks Redis."""
    scheme, separator, rest = url.partition("://")
    return {"valkey": "redis", "valkeys": "rediss"}.get(scheme, scheme) + separator + rest


def transport_options(broker_url: str, *, limit: int) -> dict[str, Any]:
    """Return the options of a transport: without its timeouts a frozen broker blocks a process for ever."""
    if broker_url.startswith("amqp"):
        # Steps and chores are confirmed by `senders`. Celery's own connections publish events, which need it not (G12);
        # threads would wait for it on a connection that the event loop reads, and each would take the other's bytes.
        return {"confirm_publish": False, "read_timeout": 10, "write_timeout": 10}
    return {
        # Redis gives a message to somebody else after this, whether its step still runs or not: never so soon (P31).
        "visibility_timeout": max(3600, 4 * limit),
        "unacked_restore_interval": 10,
        "unacked_restore_throttle": 1,
        "socket_timeout": 10,
        "socket_connect_timeout": 5,
        "socket_keepalive": True,
        "health_check_interval": 10,
        "retry_on_timeout": False,
        "priority_steps": [0],  # the ledger knows priorities; four lists a lane would be three for nothing
    }


def worker_argv(
    settings: Settings, *, lanes: Sequence[str], pool: str = "prefork", concurrency: int = 2, name: str = "worker"
) -> list[str]:
    """Return the arguments of `celery worker`, with a node name that no other start has."""
    consumed = ",".join(settings.lanes[lane].queue for lane in lanes)
    return [
        "worker",
        f"--queues={consumed}",
        f"--pool={pool}",
        f"--concurrency={concurrency}",
        # RabbitMQ still holds the old connection's exclusive queues when a worker comes back under its old name.
        f"--hostname={name}-{token_hex(4)}@%h",
        "--task-events",
        "--without-mingle",
        "--without-gossip",
        "--loglevel=INFO",
    ]
