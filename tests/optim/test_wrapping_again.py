"""A base optimizer that is wrapped again takes the new method's options, not those the old wrapper left behind."""

from __future__ import annotations

import torch

import steppe


def base(**group):
    return torch.optim.SGD([{"params": [torch.nn.Parameter(torch.ones(3))], **group}], lr=0.1)


def test_the_new_methods_radius_replaces_the_old_methods():
    b = base()
    steppe.build("sam", b, rho=0.05)
    assert steppe.build("gsam", b, rho=0.5).param_groups[0]["rho"] == 0.5


def test_a_radius_that_the_user_gave_stays():
    b = base(rho=0.2)
    steppe.build("sam", b, rho=0.05)
    assert steppe.build("gsam", b, rho=0.5).param_groups[0]["rho"] == 0.2
    b.param_groups[0]["rho"] = 0.3
    assert steppe.build("sam", b, rho=0.7).param_groups[0]["rho"] == 0.3
