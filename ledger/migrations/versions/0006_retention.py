"""Retention: what remains of a pruned run, and who refers to which artifact; the newest revision has the functions."""

from importlib.resources import files

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the tables and indexes."""
    driver = op.get_bind().connection.driver_connection
    assert driver is not None  # a migration always has a connection
    driver.execute(
        files(__package__ or "safepoint.ledger.migrations.versions").joinpath("0006_retention.sql").read_text()
    )


def downgrade() -> None:
    """There is no way back, and none is needed: an earlier release works on this schema."""
    raise NotImplementedError("restore a backup instead")
