"""What the documents say that updates, and keys and values, reveal: measured, so that nobody takes them for private."""

from __future__ import annotations

import torch
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model


def test_the_changed_rows_of_a_word_embedding_are_the_tokens_that_a_client_trained_on() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = BertModel(BertConfig(vocab_size=500, **sizes))
    before = model.embeddings.word_embeddings.weight.detach().clone()
    tokens = torch.randint(1, 500, (4, 30))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(tokens).last_hidden_state.square().mean().backward()
    optimizer.step()
    update = before - model.embeddings.word_embeddings.weight.detach()
    assert set(update.abs().sum(1).nonzero().flatten().tolist()) == set(tokens.flatten().tolist())


def recovered(noise: float) -> float:
    """Share of a text's tokens that who holds the weights reads off the first layer's keys."""
    torch.manual_seed(0)
    model = GPT2Model(GPT2Config(vocab_size=2000, n_positions=64, n_embd=48, n_layer=2, n_head=4)).eval()
    tokens = torch.randint(2000, (1, 40))
    with torch.no_grad():
        keys = model(tokens, use_cache=True).past_key_values.layers[0].keys  # (1, heads, tokens, head_dim)
        keys = keys + noise * keys.std() * torch.randn_like(keys)
        passed = keys.transpose(1, 2).reshape(40, 48)
        block, width = model.h[0], 48
        guesses = []
        for place in range(40):
            every = block.ln_1(model.wte.weight + model.wpe.weight[place])
            their = block.attn.c_attn(every)[:, width : 2 * width]
            guesses.append(int((their - passed[place]).square().sum(1).argmin()))
    return sum(map(int.__eq__, guesses, tokens[0].tolist())) / 40


def test_keys_give_away_every_token_even_with_noise() -> None:
    assert recovered(0.0) == 1.0
    assert recovered(0.5) > 0.9
