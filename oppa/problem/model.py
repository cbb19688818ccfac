"""What a transformer is made of, and the facts that follow: parameter counts and operation counts.

Notation:
    L layers, h hidden, a heads, k kv_heads, f ffn, V vocab, s seq_len, E experts (k_e of them active)

Operations are counted as needed, not as some kernel spends them: two per multiply-add of every matrix product (attention scores and
their product with the values included, masked ones not), nothing for norms, softmax, activations, and embedding look-ups.
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
    entry_point: str = ""
    """`folder:module:name` of somebody's own module (oppa.training.parts), of which the dimensions tell the cost model; empty: none."""

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads

    @property
    def kv_width(self) -> int:
        """Width of all keys of a token, and of all values: k heads."""
        return self.kv_heads * self.head_dim

    @property
    def norm_parameter_count(self) -> int:
        """Weights of one norm."""
        return self.hidden * (2 if self.norm == "layer" else 1)

    @property
    def attention_parameter_count(self) -> int:
        """Weights of one layer's attention: query, key, value and output."""
        qkv_bias = self.hidden + 2 * self.kv_width if self.biases or self.qkv_bias else 0
        return self._attention_matrices + qkv_bias + (self.hidden if self.biases else 0)

    @property
    def expert_parameter_count(self) -> int:
        """Weights of one feed-forward network; a dense layer has one, a mixture E."""
        up = 2 if self.gated else 1
        return self._expert_matrices + ((up * self.ffn + self.hidden) if self.biases else 0)

    @property
    def router_parameter_count(self) -> int:
        """Weights that choose a layer's experts."""
        return self.hidden * self.experts if self.experts > 1 else 0

    @property
    def layer_parameter_count(self) -> int:
        """Weights of one layer: attention, feed-forward or all experts with their router, two norms."""
        feed_forward = self.experts * self.expert_parameter_count + self.router_parameter_count
        return self.attention_parameter_count + feed_forward + 2 * self.norm_parameter_count

    @property
    def embedding_parameter_count(self) -> int:
        """Weights before the first layer: token (or patch and class token), position and token-type embeddings."""
        patches = (3 * self.patch**2 + 1) * self.hidden + self.hidden
        tokens = patches if self.patch else self.vocab * self.hidden
        return tokens + (self.learned_positions + self.token_types) * self.hidden

    @property
    def head_parameter_count(self) -> int:
        """Weights of the output projection that are not the embedding's."""
        return 0 if self.tied else self.vocab * (self.hidden + (1 if self.biases else 0))

    @property
    def parameter_count(self) -> int:
        """All weights: embedding, L layers, one norm before or after them, output projection; no task's extra heads (BERT's pooler)."""
        return (
            self.embedding_parameter_count
            + self.layers * self.layer_parameter_count
            + self.norm_parameter_count
            + self.head_parameter_count
        )

    @property
    def layer_flops_per_sequence(self) -> int:
        """Operations of one layer's forward pass over s tokens, 2 per multiply-add; linear in s but for attention, which is quadratic."""
        linear = self._attention_matrices + self.experts_per_token * self._expert_matrices + self.router_parameter_count
        attended = self.seq_len * (self.seq_len + 1) // 2 if self.causal else self.seq_len**2
        return 2 * self.seq_len * linear + 4 * self.hidden * attended

    @property
    def head_flops_per_sequence(self) -> int:
        """Operations of the output projection of s tokens (of the class token alone for a ViT), forward."""
        return 2 * (1 if self.patch else self.seq_len) * self.vocab * self.hidden

    @property
    def forward_flops_per_sequence(self) -> int:
        """Operations of a forward pass over one sequence; for a ViT with the projection of its patches."""
        patches = 2 * (self.seq_len - 1) * 3 * self.patch**2 * self.hidden if self.patch else 0
        return patches + self.layers * self.layer_flops_per_sequence + self.head_flops_per_sequence

    @property
    def part_flops(self) -> tuple[int, ...]:
        """Operations of a forward pass over one sequence, part by part: before the layers, each layer, behind them; shape (L + 2,)."""
        before = self.forward_flops_per_sequence - self.layers * self.layer_flops_per_sequence - self.head_flops_per_sequence
        return before, *[self.layer_flops_per_sequence] * self.layers, self.head_flops_per_sequence

    @property
    def flops_per_token(self) -> float:
        """Operations of a forward pass, averaged over the tokens of a sequence."""
        return self.forward_flops_per_sequence / self.seq_len

    @property
    def training_flops_per_token(self) -> float:
        """Forward and backward, without recomputation: each product has two in the backward pass."""
        return 3 * self.flops_per_token

    @property
    def _attention_matrices(self) -> int:
        return 2 * self.hidden * (self.hidden + self.kv_width)

    @property
    def _expert_matrices(self) -> int:
        return (3 if self.gated else 2) * self.hidden * self.ffn
