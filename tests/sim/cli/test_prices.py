"""A price of an hour is read alike wherever one is given."""

from __future__ import annotations

import pytest

from sim.cli.prices import parse_prices
from sim.errors import UserError


def test_a_price_of_one_gpu_or_of_any_and_one_that_is_owned_costs_nothing() -> None:
    assert parse_prices([], of_any=True) == (None, {})
    assert parse_prices(["2.5", "4090=0", "NVIDIA H100=3"], of_any=True) == (2.5, {"rtx-4090": 0.0, "h100-80gb": 3.0})
    assert parse_prices(["rtx-4090=0"], of_any=False) == (None, {"rtx-4090": 0.0})


@pytest.mark.parametrize("text", ["", "=", "h100", "h100=", "h100=much", "h100=-1", "h100=nan", "h100=inf", "-1"])
@pytest.mark.parametrize("of_any", [True, False])
def test_what_is_no_price_is_one_line(text: str, of_any: bool) -> None:
    with pytest.raises(UserError, match=r"^--gpu-price .*: expected a price of an hour, at least 0, as .*h100=2\.5$"):
        parse_prices([text], of_any=of_any)
