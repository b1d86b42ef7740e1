# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

import tersekv


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny models gain nothing from more, and on a busy machine threads that wait for each other take long. Tests of
    threads set their own number."""
    torch.set_num_threads(1)
    tersekv.set_num_threads(1)
    torch.manual_seed(0)
