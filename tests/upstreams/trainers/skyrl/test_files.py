from __future__ import annotations

from dataclasses import replace

from harness.upstreams.skyrl.node_config import fields
from tests.runtime.conftest import config


def test_the_model_folder_holds_the_sizes_of_the_cell() -> None:
    cell = replace(config("skyrl"), trainer="skyrl")
    found = fields(replace(cell, model=replace(cell.model, tied=True, rope_base=500)))
    sizes = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size")
    model = cell.model
    assert [found[name] for name in sizes] == [model.layers, model.hidden, model.heads, model.kv_heads, model.ffn]
    assert (found["vocab_size"], found["tie_word_embeddings"]) == (model.vocab, True)
    assert found["rope_parameters"] == {"rope_type": "default", "rope_theta": 500.0}
    assert found["max_position_embeddings"] == cell.train.seq_length + 1  # a label needs one more token
