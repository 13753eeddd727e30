"""Fixtures that more than one file uses."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

TINY = Path(__file__).parent / "golden" / "models" / "llama"


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a tiny random llama whose draft is the same model. Not to be changed."""
    from specrt.export.build import export

    out = tmp_path_factory.mktemp("bundles") / "tiny"
    export(TINY, out, drafts=[TINY], weights="fp32", kernels="stock", check=False)
    return out
