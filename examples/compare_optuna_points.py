"""Points that Optuna chose compare methods without a verdict: they are not independent, and the answer says so."""

import optuna
import torch
from torch import nn

import steppe

optuna.logging.set_verbosity(optuna.logging.WARNING)
x = torch.randn(600, 6, generator=torch.Generator().manual_seed(0))
y = (x[:, 0] * x[:, 1] > 0).long()


def train(trial):
    torch.manual_seed(trial.seed)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    opt = trial.optimizer(model, momentum=0.9)
    for _ in range(20 * trial.epochs):
        opt.step(lambda pass_: pass_.backward(nn.functional.cross_entropy(model(x[:200]), y[:200])))
    correct = model(x).argmax(1) == y
    return correct[200:300], correct[300:]


def objective(trial):
    settings = {"lr": trial.suggest_float("lr", 3e-3, 1e0, log=True)}
    return train(steppe.comparison.Trial("none", 0, trial.number, {**settings, "epochs": 2}))[0].float().mean().item()


study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
study.optimize(objective, n_trials=8)

points = [trial.params for trial in study.trials]
space = {"lr": steppe.LogUniform(3e-3, 1e0), "epochs": 2}
result = steppe.compare(train, ["none", "sam"], space, tuning=4, points=points)

assert result.contrasts[0].verdict == "undecided"
assert result.contrasts[0].sentence.startswith("Described only")
assert "the settings of the trials are not random" in str(result)
print(result)
