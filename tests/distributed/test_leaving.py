"""Leaving a process group."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist

from .pair import Pair, join


def left_with_a_message_under_way(rank: int, directory: str) -> bool:
    """The thread of gloo that frees the tensor needs the GIL, which torch 2.6 does not release for it."""
    dist.barrier()
    dist.destroy_process_group()
    for k in range(10):
        join(f"{directory}/{rank}-{k}", 0, 1)
        tensor = torch.ones(1 << 20)
        dist.all_reduce(tensor, async_op=True)
        del tensor
        dist.destroy_process_group()
    join(f"{directory}/both", rank, 2)
    return True


def test_a_group_is_left_while_a_thread_of_it_frees_a_tensor(pair: Pair, tmp_path: Path) -> None:
    assert pair.run(left_with_a_message_under_way, str(tmp_path)) == [True, True]
