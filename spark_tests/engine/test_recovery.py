"""Random commands with clean stops, kills, power failures and snapshots among them: what comes up again is
what the model kept.
"""

from __future__ import annotations

import pytest
from hypothesis import settings

from spark_tests.support.machines.disks import DiskMachine

#: MQ_HYPOTHESIS_PROFILE=deep takes minutes.
pytestmark = [pytest.mark.timeout(3600), pytest.mark.usefixtures("small_chunks")]


DiskMachine.TestCase.settings = settings(max_examples=settings().max_examples // 2, stateful_step_count=60)
TestDisk = DiskMachine.TestCase
