"""Fixtures that more than one file uses."""

import numpy as np
import pytest
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
