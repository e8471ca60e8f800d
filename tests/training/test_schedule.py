"""Rates: first step above 0, peak where warmup ends, minimum exactly at the last step."""

import math

import pytest

from protolith.training.schedule import Schedule

DECAYING = ["cosine", "linear"]


@pytest.mark.parametrize("name", DECAYING)
@pytest.mark.parametrize(("total", "warmup"), [(30, 0), (30, 5), (2, 0), (1000, 999), (10, 9)])
def test_last_step_has_the_minimum(name, total, warmup):
    """The horizon is the optimizer steps really done (T30)."""
    schedule = Schedule(name, peak=1e-3, total_steps=total, warmup_steps=warmup, min_ratio=0.1)
    assert schedule(total) == pytest.approx(1e-4)


@pytest.mark.parametrize("name", [*DECAYING, "constant", "constant_with_warmup", "wsd", "inverse_sqrt"])
@pytest.mark.parametrize("warmup", [0, 1, 7])
def test_first_step_is_above_zero_and_the_peak_is_reached(name, warmup):
    schedule = Schedule(name, peak=2e-3, total_steps=50, warmup_steps=warmup, decay_steps=None)
    rates = [schedule(step) for step in range(1, 51)]
    assert rates[0] > 0
    assert max(rates) == pytest.approx(2e-3)
    assert schedule(max(warmup, 1)) == pytest.approx(2e-3)


def test_a_run_of_one_step_learns():
    for name in DECAYING:
        assert Schedule(name, peak=1.0, total_steps=1)(1) == 1.0


def test_warmup_rises_in_equal_steps():
    schedule = Schedule("cosine", peak=1.0, total_steps=100, warmup_steps=10)
    assert [schedule(s) for s in (1, 5, 10)] == pytest.approx([0.1, 0.5, 1.0])


def test_warmup_longer_than_the_run_is_all_warmup():
    schedule = Schedule("cosine", peak=1.0, total_steps=30, warmup_steps=1000)
    assert schedule(30) == pytest.approx(0.03)


def test_cosine_half_way():
    schedule = Schedule("cosine", peak=1.0, total_steps=101, warmup_steps=1)
    assert schedule(51) == pytest.approx(0.5)


def test_cosine_is_the_well_known_curve():
    """Against the closed form of Loshchilov & Hutter, 2017 (SGDR)."""
    schedule = Schedule("cosine", peak=3e-4, total_steps=200, warmup_steps=20, min_ratio=0.1)
    for step in range(20, 201):
        expected = 3e-5 + 0.5 * (3e-4 - 3e-5) * (1 + math.cos(math.pi * (step - 20) / 180))
        assert schedule(step) == pytest.approx(expected)


def test_decay_steps_end_the_decay_early():
    schedule = Schedule("linear", peak=1.0, total_steps=100, warmup_steps=10, decay_steps=20, min_ratio=0.2)
    assert schedule(20) == pytest.approx(0.6)
    assert schedule(30) == schedule(100) == pytest.approx(0.2)


def test_wsd_is_flat_then_falls_to_the_minimum():
    schedule = Schedule("wsd", peak=1.0, total_steps=100, warmup_steps=10, decay_steps=20, min_ratio=0.0)
    assert {schedule(s) for s in range(10, 81)} == {1.0}
    assert schedule(90) == pytest.approx(0.5)
    assert schedule(100) == 0.0


def test_inverse_sqrt_falls_with_the_root():
    schedule = Schedule("inverse_sqrt", peak=1.0, total_steps=1000, warmup_steps=4)
    assert schedule(16) == pytest.approx(0.5)
    assert schedule(400) == pytest.approx(0.1)
