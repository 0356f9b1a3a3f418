"""Alembic's entry: runs the migrations on the connection that `safepoint.ledger.upgrade` hands over."""

from alembic import context

connection = context.config.attributes["connection"]
context.configure(connection=connection, version_table="schema_version", version_table_schema="safepoint")
with context.begin_transaction():
    context.run_migrations()
