"""Effects: the columns that the side-effect ledger needs. The functions are put in place by the newest revision."""

from importlib.resources import files

from alembic import op
from safepoint.ledger import functions

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# What is called here, to name the effects that are open.
PARTS = ("clock", "runs", "effects")


def upgrade() -> None:
    """Add the columns, and make rows for the effects that are open."""
    # The driver itself: without parameters it sends several statements at once and leaves % alone.
    driver = op.get_bind().connection.driver_connection
    assert driver is not None  # a migration always has a connection
    functions.replace(driver, PARTS)
    driver.execute(
        files(__package__ or "safepoint.ledger.migrations.versions").joinpath("0002_effects.sql").read_text()
    )


def downgrade() -> None:
    """There is no way back: what an effect has come to must not be forgotten."""
    raise NotImplementedError("restore a backup instead")
