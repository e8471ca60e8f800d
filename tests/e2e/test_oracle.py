"""The whole run against a plain loop: transformers' own loss, torch's own optimizer, rows cut by hand.

Nothing of the product is used on the other side but the initial weights and the order of the rows.
"""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from protolith.data.sampler import row_order
from protolith.formats.rundir import RunDir, read_metrics
from protolith.model.build import build_model
from tests.support import tiny

STEPS, ROWS, SEQ_LEN = 15, 4, 64


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_losses_norms_rates_and_weights_are_those_of_a_plain_loop(tmp_path, family):
    tiny.write_corpus(tmp_path / "corpus.jsonl", 80)
    tiny.write_model(tmp_path / "model", family)
    state = tiny.train(
        tmp_path,
        trainer__max_steps=STEPS,
        trainer__batch_size=2,
        trainer__gradient_accumulation=2,
        trainer__warmup_steps=3,
        trainer__weight_decay=0.1,
        trainer__max_grad_norm=1.0,
    )
    ours = read_metrics(RunDir(state.run_dir).metrics)

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    line = []
    for record in (tmp_path / "corpus.jsonl").read_text().splitlines():
        line += [*tokenizer(json.loads(record)["text"])["input_ids"], tokenizer.eos_token_id]
    num_rows = -(-(len(line) - 1) // SEQ_LEN)
    order = row_order(7, 0, num_rows, True).take(np.arange(STEPS * ROWS))

    model = build_model(tmp_path / "model", seed=7).module
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    plain = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
        eps=1e-8,
        fused=False,
        foreach=False,
    )
    for step in range(1, STEPS + 1):
        loss_sum, count = 0.0, 0
        for row in order[(step - 1) * ROWS : step * ROWS].tolist():
            ids = torch.tensor([line[row * SEQ_LEN : row * SEQ_LEN + SEQ_LEN + 1]])
            logits = model(input_ids=ids[:, :-1]).logits.float()
            loss = torch.nn.functional.cross_entropy(logits[0], ids[0, 1:], reduction="sum")
            loss.backward()
            loss_sum, count = loss_sum + float(loss.detach()), count + ids.shape[1] - 1
        for parameter in model.parameters():
            parameter.grad /= count
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        rate = 1e-3 * (step / 3 if step < 3 else 0.5 * (1 + math.cos(math.pi * (step - 3) / (STEPS - 3))))
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
        assert ours[step]["loss/mean"] == pytest.approx(loss_sum / count, rel=1e-5)
        assert ours[step]["optim/grad_norm"] == pytest.approx(float(norm), rel=1e-4)
        assert ours[step]["optim/lr"] == pytest.approx(rate)

    from safetensors.torch import load_file

    saved = load_file(state.run_dir / "model" / "model.safetensors")
    for name, tensor in saved.items():
        torch.testing.assert_close(tensor, model.state_dict()[name], rtol=1e-4, atol=1e-5)
