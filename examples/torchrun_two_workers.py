"""Two workers, started by torchrun, end with the weights of one process to 1e-12, and bitwise equal to each other."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import steppe

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
x, y = torch.randn(64, 10), torch.randint(3, (64,))
rank, workers = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def trained():
    model = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 3))
    if workers > 1:
        model = DistributedDataParallel(model)
    opt = steppe.sam(torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9), rho=0.1, model=model)
    mine = slice(rank, None, workers)  # the rows of this worker
    for _ in range(20):
        for turn in opt.passes():
            turn.backward(nn.functional.cross_entropy(model(x[mine]), y[mine]))
        opt.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


if workers > 1:  # started by torchrun
    dist.init_process_group("gloo")
    torch.save(trained(), Path(sys.argv[1]) / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
else:
    with tempfile.TemporaryDirectory() as folder:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        subprocess.run([*torchrun, __file__, folder], check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        first, second = (torch.load(Path(folder) / f"{k}.pt") for k in (0, 1))
    alone = trained()
    assert torch.equal(first, second)
    assert torch.allclose(first, alone, rtol=0, atol=1e-12), (first - alone).abs().max()
    print(f"largest difference between two workers and one: {(first - alone).abs().max():.0e}")
