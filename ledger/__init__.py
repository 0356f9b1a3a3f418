"""The ledger: PostgreSQL tables, and the guarded statements that move them.

Every function takes a connection first and returns a value; only `ledger.commit` ends a step.
"""
