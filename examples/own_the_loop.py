"""Four micro-batches with a GradScaler and clipping give the weights of one whole batch without a scaler, to 1e-5."""

import torch
from torch import nn

import steppe

torch.manual_seed(0)
x, y = torch.randn(64, 10), torch.randint(3, (64,))
start = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 3)).state_dict()


def trained(microbatches, scaler=None, steps=20):
    model = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 3))
    model.load_state_dict(start)
    base = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    opt = steppe.SharpnessAware(base, steppe.SAM(rho=0.1), model=model, scaler=scaler)
    norms = []
    for _ in range(steps):
        for pass_ in opt.passes():  # SAM has two passes: at the weights, and at the top of the ball
            for a, b in zip(x.chunk(microbatches), y.chunk(microbatches), strict=True):
                pass_.backward(nn.functional.cross_entropy(model(a), b) / microbatches)  # applies the loss scale too
        if scaler is not None:
            scaler.unscale_(opt)
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.2)))  # once, on the final gradient
        if scaler is None:
            opt.step()
        else:
            scaler.step(opt)
            scaler.update()
    return torch.cat([p.detach().flatten() for p in model.parameters()]), norms


whole, norms = trained(1)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
parts, _ = trained(4, scaler)

assert scaler.get_scale() == 1024.0, "a step overflowed and was skipped"
assert max(norms) > 0.2 > min(norms), "clipping must apply to some steps and not to all"
assert torch.allclose(whole, parts, rtol=0, atol=1e-5), (whole - parts).abs().max()
print(f"largest difference between the two: {(whole - parts).abs().max():.1e}")
