"""Who wants to be called at the steps of an optimizer, and what is done before its state is saved."""

from __future__ import annotations

import weakref
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks


def hooked(*optimizers: Optimizer) -> bool:
    """Whether somebody wants to be called at every step that is taken."""
    return bool(_global_optimizer_pre_hooks or _global_optimizer_post_hooks) or any(
        o._optimizer_step_pre_hooks or o._optimizer_step_post_hooks for o in optimizers
    )


def settle_before_saving(opt: Any, base: Optimizer) -> None:
    """Has an optimizer settle before its state is saved, under its own name or its base's."""
    me = weakref.ref(opt)  # a base that outlives it, or is wrapped again, does not keep it
    for each in (opt, base):
        each.register_state_dict_pre_hook(lambda _: None if (it := me()) is None else it.settle())
