"""Who is compared, in the order of the tables."""

from __future__ import annotations

from starting import Contender, chain, ours, peer, restate

__all__ = ["CONTENDERS"]


def _ours(broker: str, pool: str, seconds: str, number: int, long: int = 0) -> Contender:
    how = "one message a step" if seconds == "0" else f"in place, {seconds} s"
    options = {"broker": broker, "pool": pool, "slice": seconds, "number": str(number)}
    return Contender(
        f"Safepoint, {how}, {broker}, {pool} 8", ("PostgreSQL", broker), ours, options, long=long, door="bulk"
    )


def _chain(broker: str) -> Contender:
    remark = "a result lives in the next message only; messages are acknowledged before their task runs"
    return Contender(
        f"Celery chain, {broker}, prefork 8", (broker,), chain, {"broker": broker}, long=400, remark=remark
    )


def _peer(name: str, environment: str, *, remark: str, long: int, door: str = "one", **options: str) -> Contender:
    return Contender(name, ("PostgreSQL",), peer, options, environment, long, door, remark)


CONTENDERS: dict[str, Contender] = {
    "chain-redis": _chain("Redis"),
    "ours-redis": _ours("Redis", "prefork", "0", 1, long=5000),
    "inline-redis": _ours("Redis", "prefork", "5", 2),
    "chain-rabbitmq": _chain("RabbitMQ"),
    "ours-rabbitmq": _ours("RabbitMQ", "prefork", "0", 3),
    "ours-rabbitmq-threads": _ours("RabbitMQ", "threads", "0", 4),
    "inline-rabbitmq-threads": _ours("RabbitMQ", "threads", "5", 5, long=5000),
    "restate": Contender(
        "Restate, one node",
        (),
        restate,
        environment="restate",
        long=1000,
        remark="a log of its own instead of PostgreSQL, synced to disk as it comes; one Hypercorn process",
    ),
    "absurd": _peer(
        "Absurd",
        "absurd",
        long=1000,
        remark="one process, eight threads with a connection each, looking every 10 ms when idle",
        worker="absurd_worker.py",
        workers="1",
        client="absurd_client.py",
        schema="absurd_schema.py",
    ),
    "dbos-threads": _peer(
        "DBOS, one process, threads 8",
        "dbos",
        long=1000,
        door="none",
        remark="no queue: a thread calls the workflow",
        client="dbos_threads.py",
    ),
    "dbos-queue": _peer(
        "DBOS, two processes, queue",
        "dbos",
        long=0,
        remark="four workflows at once in each process, queue looked at every 10 ms",
        worker="dbos_worker.py",
        workers="2",
        client="dbos_client.py",
    ),
    "langgraph": _peer(
        "LangGraph, PostgreSQL saver, sync",
        "langgraph",
        long=1000,
        door="none",
        remark="one process, a thread a run; a graph of one node that loops, whose whole state is its checkpoint",
        client="langgraph_threads.py",
    ),
}
