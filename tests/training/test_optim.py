"""AdamW against torch's own reference implementation, and decay by role."""

import torch
from torch import nn

from protolith.training.optim import build_adamw, parameter_groups


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.norm = nn.LayerNorm(8)
        self.linear = nn.Linear(8, 11)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        hidden = self.norm(self.embedding(ids))
        return self.linear(hidden) + self.head(hidden)


def test_roles_by_shape_with_tied_weights_once():
    module = Small()
    groups = parameter_groups(module)
    assert {id(p) for p in groups.decayed} == {id(module.embedding.weight), id(module.linear.weight)}
    assert {id(p) for p in groups.plain} == {
        id(module.norm.weight),
        id(module.norm.bias),
        id(module.linear.bias),
    }
    assert "176 parameters in 2 tensors" in groups.describe(0.1)
    assert "27 parameters in 3 tensors" in groups.describe(0.1)


def test_same_numbers_as_the_plain_loop_of_torch():
    torch.manual_seed(0)
    ours, theirs = Small(), Small()
    theirs.load_state_dict(ours.state_dict())
    options = {"betas": (0.9, 0.95), "eps": 1e-8}
    a = build_adamw(parameter_groups(ours), learning_rate=1e-2, weight_decay=0.1, **options)
    groups = parameter_groups(theirs)
    b = torch.optim.AdamW(
        [
            {"params": groups.decayed, "weight_decay": 0.1},
            {"params": groups.plain, "weight_decay": 0.0},
        ],
        lr=1e-2,
        fused=False,
        foreach=False,
        **options,
    )
    ids = torch.arange(11)
    for _ in range(20):
        for module, optimizer in ((ours, a), (theirs, b)):
            loss = nn.functional.cross_entropy(module(ids), ids.roll(1))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    for x, y in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6)
