"""Define models by name: those of the papers, and tiny ones for CPUs. Dimensions are those of the published configurations."""

import functools

from oppa.problem.model import Model

_bert = functools.partial(Model, gated=False, biases=True, tied=True, norm="layer", causal=False, token_types=2)
_vit = functools.partial(Model, gated=False, biases=True, norm="layer", causal=False)
_moe = functools.partial(Model, experts_per_token=2)

_PUBLISHED = (
    _bert(name="bert-base", layers=12, hidden=768, heads=12, kv_heads=12, ffn=3072, vocab=30522, seq_len=256, learned_positions=512),
    _vit(name="vit-base", layers=12, hidden=768, heads=12, kv_heads=12, ffn=3072, vocab=1000, seq_len=197, learned_positions=197, patch=16),
    Model(name="qwen2-1.5b", layers=28, hidden=1536, heads=12, kv_heads=2, ffn=8960, vocab=151936, seq_len=1024, qkv_bias=True, tied=True),
    Model(name="qwen2.5-32b", layers=64, hidden=5120, heads=40, kv_heads=8, ffn=27648, vocab=152064, seq_len=1024, qkv_bias=True),
    Model(name="llama-3.2-1b", layers=16, hidden=2048, heads=32, kv_heads=8, ffn=8192, vocab=128256, seq_len=1024, tied=True),
    Model(name="llama-3.2-3b", layers=28, hidden=3072, heads=24, kv_heads=8, ffn=8192, vocab=128256, seq_len=1024, tied=True),
    Model(name="llama-2-7b", layers=32, hidden=4096, heads=32, kv_heads=32, ffn=11008, vocab=32000, seq_len=1024),
    Model(name="llama-2-13b", layers=40, hidden=5120, heads=40, kv_heads=40, ffn=13824, vocab=32000, seq_len=1024),
    _moe(name="mixtral-8x7b", layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=32000, seq_len=1024, experts=8),
)
"""Sequence lengths are those of OPPA's Table 2, or 1024 for models that it lacks; 197 is 14 x 14 patches and the class token."""

# OPPA App. I.3 states 16 units, 32 heads and 32 experts, after Shazeer et al. 2017; the widths and two active experts are our choice.
_MIXTURE = _moe(name="moe-32e", layers=16, hidden=1024, heads=32, kv_heads=32, ffn=2048, vocab=32000, seq_len=1024, gated=False, experts=32)

# These models are byte-level. Eight layers allow 4 stages of 2 chunks; 4 tensor-parallel ranks divide heads and widths. ffn = 19/6 hidden
# gives the size in the name.
_TINY = (
    Model(name="tiny-1m", layers=8, hidden=96, heads=4, kv_heads=4, ffn=304, vocab=256, seq_len=64),
    Model(name="tiny-4m", layers=8, hidden=192, heads=4, kv_heads=4, ffn=608, vocab=256, seq_len=128),
    Model(name="tiny-16m", layers=8, hidden=384, heads=8, kv_heads=8, ffn=1216, vocab=256, seq_len=128),
    Model(name="tiny-64m", layers=8, hidden=768, heads=12, kv_heads=12, ffn=2432, vocab=256, seq_len=256),
)

PRESETS = {model.name: model for model in (*_TINY, *_PUBLISHED, _MIXTURE)}
