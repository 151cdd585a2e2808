"""The drift diagnostics, on ratios whose statistics are known."""

from __future__ import annotations

import math

import pytest
import torch

from algos.training.drift import COLLAPSED, ratio_drift


def test_quantiles_and_drifted_share() -> None:
    ratios = torch.tensor([[0.5, 1.0, 2.0, 9.0], [0.05, 0.1, 7.0, 7.0], [3.0, 3.0, 3.0, 3.0]])
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]], dtype=torch.bool)
    found = ratio_drift(ratios.log(), mask)
    assert found["ratio_p50"] == pytest.approx(0.5)
    assert found["ratio_p05"] == pytest.approx(math.exp(0.8 * math.log(0.05) + 0.2 * math.log(0.1)))
    # Row 0's product is 1, row 1's 0.005; row 2 has no token of the policy and is no trajectory here.
    assert 0.005 < COLLAPSED < 1
    assert found["drifted"] == 0.5


def test_masked_places_may_hold_anything() -> None:
    log_ratio = torch.tensor([[0.0, math.nan, -math.inf]])
    assert ratio_drift(log_ratio, torch.tensor([[True, False, False]]))["ratio_p50"] == 1.0


def test_nothing_sampled_says_nothing() -> None:
    assert ratio_drift(torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool)) == {}
