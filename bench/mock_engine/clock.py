"""The mock engine's one wall clock: for event timestamps and `created` fields only."""

import time
from typing import Final

wall_clock_s: Final = time.time  # noqa: TID251 - an adapter
