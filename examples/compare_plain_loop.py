"""A plain training loop compares SGD with SAM at equal passes after a dozen changed lines, marked below."""

import torch
from torch import nn

import steppe

draw = torch.Generator().manual_seed(0)
x = torch.randn(700, 6, generator=draw)
y = (x[:, 0] * x[:, 1] > 0).long()


def train(trial):  # changed: the loop is a function of a trial
    torch.manual_seed(trial.seed)  # changed: a seed from the trial
    order = torch.randperm(400)
    fit, validation, test = order[:300], order[300:], slice(400, None)  # changed: validation rows selects among trials
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    opt = trial.optimizer(model, momentum=0.9)  # changed: the method around SGD, with the trial's lr
    for _ in range(trial.epochs):  # changed: fewer for methods with more passes
        for rows in fit[torch.randperm(300)].split(50):
            for pass_ in opt.passes():  # changed: as many passes as the method has
                pass_.backward(nn.functional.cross_entropy(model(x[rows]), y[rows]))
            opt.step()
        with torch.no_grad():  # for the learning curves; it may be left out
            trial.report((model(x[validation]).argmax(1) != y[validation]).float().mean())
    with torch.no_grad():
        correct = model(x).argmax(1) == y
    return correct[validation], correct[test]  # changed: which rows are classified correctly


space = {"lr": steppe.LogUniform(3e-3, 3e0), "epochs": 8}  # changed
result = steppe.compare(train, ["none", "sam"], space, tuning=3, trials=9, worth=5)  # changed

answer = result.contrasts[0]
assert answer.verdict in ("better", "worse", "no difference", "undecided", "cannot tell")
assert answer.low <= answer.difference <= answer.high
assert [round(row.counted) for row in result.rows] == [1, 2]  # forward passes per step
assert all(row.learning[-1]["passes"] == 8 for row in result.rows)  # of both, at equal cost
assert result.recommended.seeds == 3
print(result)
