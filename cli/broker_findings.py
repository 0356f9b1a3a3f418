"""What the state of the broker means. Pure: it takes what was read and judges it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ..ledger.condition import LaneLoad
from ..tasks.broker import Bounds, Memory, Queues
from ..tasks.broker_amqp import AmqpState
from ..tasks.broker_redis import RedisState
from ..tasks.management import Management
from .finding import Finding, counted, error, fine, warning
from .words import span

__all__ = ["amqp", "consumer_timeout", "depths", "redis", "visibility"]

NOEVICTION: Final = "noeviction"
FULL: Final = 0.9  # of what there may be
SPARE: Final = 10  # messages that may be on their way between two looks
CHORES: Final = 120  # messages on the control queue: two minutes of scans that nobody took
SAFE: Final = 4  # P31: a message is given to somebody else after four of its hard limits at the soonest


def redis(found: RedisState) -> list[Finding]:
    """Judge a Redis or Valkey."""
    name = f"{found.name} {found.version}"
    told = [fine("broker", f"{name} answers.")]
    if found.is_replica:
        told = [
            error("broker", f"{name} is a replica: it takes no messages.", "point SAFEPOINT_BROKER_URL at the primary")
        ]
    if found.write_error:
        text = f"{found.name} cannot write to its disk ({found.write_error}), and may refuse messages because of it."
        told.append(error("broker", text, "see its log; give it disk space"))
    told += [*_eviction(found), *_memory(found.name, found.memory), _persistence(found)]
    if found.max_clients and found.clients > FULL * found.max_clients:
        text = f"{found.clients} of {found.max_clients} clients are connected."
        told.append(warning("clients", text, "raise maxclients; see CLIENT LIST for who they are"))
    return told


def _eviction(found: RedisState) -> list[Finding]:
    policy = found.memory.policy
    if policy == NOEVICTION:
        return [fine("eviction", "maxmemory-policy is noeviction: no message is thrown away.")]
    text = f"maxmemory-policy is {policy}: {found.name} throws messages away when its memory is full"
    next_ = "CONFIG SET maxmemory-policy noeviction (and in its configuration)"
    if found.memory.limit:
        return [error("eviction", f"{text}. Steps are late then, again and again.", next_)]
    return [warning("eviction", f"{text}; maxmemory is not set, so not yet.", next_)]


def _memory(name: str, memory: Memory) -> list[Finding]:
    if not memory.limit or memory.used <= FULL * memory.limit:
        return []
    text = f"{name} uses {memory.used / memory.limit:.0%} of its memory; at the limit it takes no more messages."
    return [warning("memory", text, "raise maxmemory, or see what else is kept there (MEMORY STATS)")]


def _persistence(found: RedisState) -> Finding:
    if found.is_persistent:
        return fine("persistence", "An append-only file keeps the messages over a restart.")
    text = "No append-only file: what a restart loses, the relay sends again. Runs are late then, none is lost."
    return fine("persistence", text)


def visibility(found: Bounds, *, running: float) -> list[Finding]:
    """Judge whether a message is given to somebody else while its step still runs; `running` is the longest that
    some step was allowed which runs now.
    """
    given = found.visibility_timeout
    if given is None:
        return []
    longest = f"{found.step} may take {span(found.timeout)}, its process ends after {span(found.hard_limit)}"
    text = f"visibility_timeout is {span(given)}: {longest}."
    if found.hard_limit * SAFE > given:
        next_ = f"shorten the step's timeout: four times its hard limit ({span(SAFE * found.hard_limit)}) is needed"
        return [error("visibility_timeout", text, next_)]
    if running > given:
        text = f"A step that runs now may take {span(running)}; processes configured like this one give its message"
        text += f" to somebody else after {span(given)}. The ledger refuses it, for each of them anew."
        return [warning("visibility_timeout", text, "start all workers with the same SAFEPOINT_FLOWS")]
    return [fine("visibility_timeout", text)]


def amqp(found: AmqpState, management: Management | None) -> list[Finding]:
    """Judge a RabbitMQ."""
    name = f"{found.name} {found.version}"
    told = [fine("broker", f"{name} answers.")]
    alarms = management.alarms if management else ()
    if found.blocked or alarms:
        why = found.blocked or ", ".join(alarms)
        text = f"{name} takes no messages, it is in an alarm: {why}."
        told.append(error("alarms", text, "rabbitmq-diagnostics alarms; free memory or disk space there"))
    elif not found.confirms:
        text = f"{name} did not confirm a message: an alarm, or no right to publish."
        told.append(error("alarms", text, "rabbitmq-diagnostics alarms; the broker user's permissions on the vhost"))
    else:
        told.append(fine("alarms", "Messages are taken and confirmed."))
    for queue, difference in found.queues.mismatched.items():
        text = f"The queue {queue} was made otherwise than workers make it ({difference})."
        next_ = f"drain and delete it; a worker makes it anew: rabbitmqctl delete_queue {queue}"
        told.append(error("queues", text, next_))
    return told


def consumer_timeout(found: Bounds, management: Management | None, queues: Sequence[str]) -> list[Finding]:
    """Judge whether RabbitMQ takes a message back while its step still runs."""
    limit = f"{found.step} may hold a message for {span(found.hard_limit)}"
    wanted = 1000 * (found.hard_limit + 60)
    bad = []
    timeouts = management.consumer_timeouts if management else {}
    for queue in queues:
        seconds = timeouts.get(queue)
        if seconds is not None and seconds <= found.hard_limit:
            text = f"The queue {queue} has a consumer timeout of {span(seconds)}, and {limit}: it is taken back."
            bad.append(error("consumer_timeout", text, f"raise it, in a policy or its arguments, to {wanted} ms"))
    if bad:
        return bad
    if queues and all(queue in timeouts for queue in queues):
        return [fine("consumer_timeout", f"{limit}, and every queue's consumer timeout is longer.")]
    # No protocol tells the server's own value; only its machine does.
    text = f"{limit}. The server's consumer_timeout (30 min where nothing is set) cannot be asked; it must be longer."
    next_ = f"rabbitmq-diagnostics environment | grep consumer_timeout; in rabbitmq.conf: consumer_timeout = {wanted}"
    return [warning("consumer_timeout", text, next_)]


def depths(
    found: Queues, lanes: Mapping[str, str], loads: Sequence[LaneLoad], *, control: str, patience: float
) -> list[Finding]:
    """Compare what waits in the broker with what the ledger has sent and nobody has claimed.

    `lanes` is lane to queue, `patience` the seconds in which a claim should come.
    """
    told: list[Finding] = []
    by_queue: dict[str, list[LaneLoad]] = {}
    for one in loads:
        if one.lane in lanes:
            by_queue.setdefault(lanes[one.lane], []).append(one)
    for queue, own in sorted(by_queue.items()):
        waiting = found.waiting.get(queue)
        if queue == control or waiting is None:
            continue
        sent = sum(one.sent for one in own)
        if waiting > 2 * sent + SPARE:
            text = f"The queue {queue} holds {counted(waiting, 'message')}, the ledger waits for {sent}: the rest is"
            told.append(
                warning(
                    "queues", f"{text} old or doubled. Each costs a refused claim, none runs twice.", "safepoint lanes"
                )
            )
    told += _lost(found, by_queue, patience=patience)
    chores = found.waiting.get(control) or 0
    if chores > CHORES:
        text = f"{counted(chores, 'message')} lie on the queue {control}: nobody takes the scans that beat sends."
        told.append(warning("queues", text, "safepoint worker --lanes control --pool threads --concurrency 1"))
    dead = [queue for queue, number in found.consumers.items() if not number and found.waiting.get(queue)]
    for queue in dead:
        if queue != control:
            text = f"The queue {queue} holds {counted(found.waiting[queue] or 0, 'message')} and has no consumer."
            told.append(warning("queues", text, "safepoint nodes; start its worker again"))
    return told or [fine("queues", "What waits in the broker is what the ledger has sent.")]


def _lost(found: Queues, by_queue: Mapping[str, Sequence[LaneLoad]], *, patience: float) -> list[Finding]:
    """Say when what was sent long ago is neither in a queue nor in anybody's hands."""
    known = {queue: own for queue, own in by_queue.items() if found.waiting.get(queue) is not None}
    lost = sum(one.lost for own in known.values() for one in own)
    there = sum(found.waiting[queue] or 0 for queue in known) + (found.in_hands or 0)
    if lost <= there + SPARE:
        return []
    text = f"{counted(lost, 'step')} were sent over {span(patience)} ago and not claimed; the broker has {there} of"
    return [warning("queues", f"{text} their messages. The relay sends them again.", "safepoint relay, if none runs")]
