"""Versions: an index for the runs of one version of a flow; the functions as they are now."""

from importlib.resources import files

from alembic import op
from safepoint.ledger import functions

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the index, and replace the functions."""
    driver = op.get_bind().connection.driver_connection
    assert driver is not None  # a migration always has a connection
    driver.execute(
        files(__package__ or "safepoint.ledger.migrations.versions").joinpath("0008_versions.sql").read_text()
    )
    functions.replace(driver)


def downgrade() -> None:
    """There is no way back, and none is needed: an earlier release works on this schema."""
    raise NotImplementedError("restore a backup instead")
