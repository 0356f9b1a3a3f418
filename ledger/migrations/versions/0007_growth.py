"""Growth: lists that are read off an index however many runs there are; the newest revision has the functions."""

from importlib.resources import files

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the indexes."""
    driver = op.get_bind().connection.driver_connection
    assert driver is not None  # a migration always has a connection
    driver.execute(files(__package__ or "safepoint.ledger.migrations.versions").joinpath("0007_growth.sql").read_text())


def downgrade() -> None:
    """There is no way back, and none is needed: an earlier release works on this schema."""
    raise NotImplementedError("restore a backup instead")
