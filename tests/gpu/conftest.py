"""Tests for a machine with a CUDA GPU; everywhere else they are skipped, loudly."""

import pytest
import torch

WHY = "gpu: no CUDA GPU on this machine"


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/gpu" in item.path.as_posix():
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason=WHY))
