"""What a transformer is made of, and the facts that follow: parameter counts and operation counts.

Notation:
    L layers, h hidden, a heads, k kv_heads, f ffn, V vocab, s seq_len, E experts (k_e of them active)
"""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Dimensions of a transformer; the counts below are exact for its weights."""

    name: str = "custom"
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    seq_len: int
    gated: bool = True
    """A gated feed-forward (SwiGLU: three matrices) instead of two."""
    biases: bool = False
    """Linear layers have biases; the attention's query, key and value alone with `qkv_bias`."""
    qkv_bias: bool = False
    tied: bool = False
    """The output projection is the embedding."""
    norm: str = "rms"
    """`rms` (one vector per norm) or `layer` (two)."""
    learned_positions: int = 0
    """Rows of a learned position embedding; 0 for rotary."""
    token_types: int = 0
    patch: int = 0
    """Side of an image patch (3 channels) for a ViT; `vocab` is then the number of classes."""
    causal: bool = True
    experts: int = 1
    experts_per_token: int = 1

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads
