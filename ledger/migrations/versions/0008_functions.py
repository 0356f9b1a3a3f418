"""Functions: the functions as they are now; no table changes."""

from alembic import op
from safepoint.ledger import functions

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Replace the functions."""
    driver = op.get_bind().connection.driver_connection
    assert driver is not None  # a migration always has a connection
    driver.execute("INSERT INTO safepoint.compatible VALUES ('0008')")
    functions.replace(driver)


def downgrade() -> None:
    """There is no way back, and none is needed: an earlier release works on this schema."""
    raise NotImplementedError("restore a backup instead")
