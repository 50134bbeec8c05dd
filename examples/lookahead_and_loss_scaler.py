"""A Lookahead base without `Optimizer.__init__` and a loss-scaler callable, as in timm, match a hand-written loop."""

import torch
from torch import nn

import steppe

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
x, y = torch.randn(32, 5), torch.randn(32, 1)
start = torch.randn(1, 5)
rho, lr, momentum, alpha, k, clip = 0.2, 0.1, 0.9, 0.5, 3, 0.8


class Lookahead(torch.optim.Optimizer):
    """Slow weights move by `alpha` towards the fast ones after every `k` steps of the inner optimizer."""

    def __init__(self, inner):  # without super().__init__(): it shares the groups and the state of the inner one
        self.inner, self.steps = inner, 0
        self.param_groups, self.state, self.defaults = inner.param_groups, inner.state, inner.defaults
        self.slow = [p.detach().clone() for g in self.param_groups for p in g["params"]]

    @torch.no_grad()
    def step(self, closure=None):
        self.inner.step()
        self.steps += 1
        if self.steps % k == 0:
            for slow, p in zip(self.slow, (p for g in self.param_groups for p in g["params"]), strict=True):
                p.copy_(slow.lerp_(p, alpha))


class LossScaler:
    """Shape of timm's NativeScaler: backward, unscale, clip, step, update in one call."""

    def __init__(self):
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def __call__(self, loss_of, optimizer, parameters):
        for pass_ in optimizer.passes():  # instead of self.scaler.scale(loss).backward()
            pass_.backward(loss_of())
        self.scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(parameters, clip)
        self.scaler.step(optimizer)
        self.scaler.update()
        return float(norm)


model = nn.Linear(5, 1, bias=False)
model.load_state_dict({"weight": start})
loss_scaler = LossScaler()
base = Lookahead(torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum))
opt = steppe.SharpnessAware(base, steppe.SAM(rho), model=model, scaler=loss_scaler.scaler)


def gradient(w):
    return 2 / len(x) * (x @ w.T - y).T @ x


w, buffer, slow, norms = start.clone(), torch.zeros(1, 5), start.clone(), []
for step in range(1, 15):
    norms.append(loss_scaler(lambda: nn.functional.mse_loss(model(x), y), opt, model.parameters()))

    up = gradient(w)
    g = gradient(w + rho * up / up.norm())
    buffer = momentum * buffer + g * min(1, clip / (g.norm() + 1e-6))
    w = w - lr * buffer
    if step % k == 0:
        w = slow = slow + alpha * (w - slow)
    assert torch.allclose(model.weight, w, rtol=0, atol=1e-12), (step, (model.weight - w).abs().max())

assert max(norms) > clip > min(norms), "clipping must apply to some steps and not to all"
assert loss_scaler.scaler.get_scale() == 1024.0, "a step overflowed and was skipped"
print(f"14 steps match to {(model.weight - w).abs().max():.0e}")
