"""Durable AI-agent runs on Celery.

A run that dies goes on from its last committed step; the names below are all that a program needs.
"""
