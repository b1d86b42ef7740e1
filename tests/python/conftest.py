# SPDX-License-Identifier: Apache-2.0
import pytest
import torch


@pytest.fixture(autouse=True)
def two_threads():
    """The same on every machine; results do not depend on it, times do."""
    torch.set_num_threads(2)
    torch.manual_seed(0)
