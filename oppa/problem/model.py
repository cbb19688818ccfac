"""Describe a transformer, and derive its parameter counts and operation counts.

Notation:
    L layers, h hidden, a heads, k kv_heads, f ffn, V vocab, s seq_len, E experts (k_e of them active)
    q query_width, the width of all heads; h unless heads have a width of their own

Operations are counted as the mathematics needs them, not as some kernel executes them. A multiply-add of a matrix product counts as two.
That includes attention scores and their product with the values, but not masked ones. Norms, softmax, activations and embedding look-ups
count as none.
"""

import dataclasses

OF_EXPERTS = ("expert_ffn", "shared_expert_ffn", "dense_layers")
"""Dimensions that only a mixture of experts has."""
OF_LATENTS = ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "v_head_dim")
"""Dimensions of multi-head latent attention (DeepSeek-V2, section 2.1), by Transformers' names."""
OF_WINDOWS = ("sliding_window", "full_attention_layers")
"""Dimensions of sliding-window attention, which are for the cost model alone, too."""
DESCRIBED_ONLY = ("head_width", *OF_EXPERTS, *OF_LATENTS)
"""Dimensions for the cost model alone: neither the built-in trainer nor the simulator builds them, and older records lack them."""
COMPUTED = ("norm_eps", "rope_theta", "activation")
"""Choices that change what a model computes, but not how long it takes; older records lack them."""
HEAD_DIM = "head_dim"
"""Key of `head_width` in a job, as the field calls it."""
MODEL_HINT = "add `[model]` with `preset = ...`, or with its dimensions"
"""Hint of an error for want of a model."""
MODEL_OPTION = "`--model layers=32,hidden=4096,...` or `--model config.json`"
"""Options that state a model on the command line."""


def key_of(field: str) -> str:
    """Return the key of `[model]` that states a field of Model."""
    return HEAD_DIM if field == "head_width" else field


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Holds the dimensions of a transformer; the counts below are exact for its weights."""

    name: str = "custom"
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    seq_len: int
    gated: bool = True
    """The feed-forward network is gated (SwiGLU) and has three matrices instead of two."""
    biases: bool = False
    """Linear layers have biases. With `qkv_bias` instead, only the attention's query, key and value have."""
    qkv_bias: bool = False
    tied: bool = False
    """The output projection uses the weights of the embedding."""
    norm: str = "rms"
    """`rms` (one vector per norm) or `layer` (two)."""
    learned_positions: int = 0
    """Rows of a learned position embedding; 0: rotary embedding."""
    token_types: int = 0
    patch: int = 0
    """Side of an image patch (3 channels) in a ViT, whose `vocab` is the number of classes; 0: not a ViT."""
    causal: bool = True
    sliding_window: int = 0
    """Tokens that a token attends to at most, itself included; 0: all."""
    full_attention_layers: int = 0
    """Number of layers that attend to all tokens, in a model whose other layers have a window."""
    experts: int = 1
    experts_per_token: int = 1
    head_width: int = 0
    """Width of one attention head; 0: hidden / heads."""
    expert_ffn: int = 0
    """Width of one expert; 0: `ffn`, which is then that of no other network unless the first layers are dense."""
    shared_expert_ffn: int = 0
    """Width of the experts together that every token passes through; 0: none."""
    dense_layers: int = 0
    """Number of layers that have one feed-forward network of width `ffn` in place of experts; they count as the first ones."""
    kv_lora_rank: int = 0
    """Width of the latent from which all keys and values of a token are computed; 0: they are computed from the token."""
    q_lora_rank: int = 0
    """The same for queries."""
    qk_rope_head_dim: int = 0
    """Part of `head_width` that is rotated; its key is computed from the token, and shared by all heads."""
    v_head_dim: int = 0
    """Width of one head's values; 0: that of its queries and keys."""
    norm_eps: float = 1e-5
    """Number that norms add to the variance."""
    rope_theta: float = 10_000.0
    """Base of the angles of a rotary embedding."""
    activation: str = "gelu"
    """Activation without a gate: `gelu`, or `gelu_tanh`, its approximation in GPT-2."""
    entry_point: str = ""
    """`folder:module:name` of the user's own module (oppa.training.model.user_module); empty: none.

    The dimensions then describe that module to the cost model.
    """
    config: str = ""
    """Path of the `config.json` of Transformers that states the dimensions; empty: none."""

    def to_dict(self) -> dict[str, object]:
        """Return plain values, as they are written to JSON; the later fields are omitted at their defaults."""
        values, usual = dataclasses.asdict(self), {field.name: field.default for field in dataclasses.fields(self)}
        later = (*DESCRIBED_ONLY, *OF_WINDOWS, *COMPUTED, "config")
        return {name: value for name, value in values.items() if name not in later or value != usual[name]}

    @property
    def is_traceable(self) -> bool:
        """Return whether the model is a real module, whose memory can be traced."""
        return bool(self.entry_point or self.config)

    @property
    def not_built(self) -> str:
        """Return the key of the first dimension that is described only; empty if the built-in trainer can build the model."""
        return key_of(next((name for name in (*DESCRIBED_ONLY, *OF_WINDOWS) if getattr(self, name)), ""))

    @property
    def gelu_approximation(self) -> str:
        """Return torch's name of the approximation that the activation is."""
        return "tanh" if self.activation == "gelu_tanh" else "none"

    @property
    def head_dim(self) -> int:
        """Return the width of one attention head."""
        return self.head_width or self.hidden // self.heads

    @property
    def query_width(self) -> int:
        """Return the width of all queries of a token: a heads."""
        return self.heads * self.head_dim if self.head_width else self.hidden

    @property
    def kv_width(self) -> int:
        """Return the width of all keys of a token: k heads."""
        return self.kv_heads * self.head_dim

    @property
    def value_width(self) -> int:
        """Return the width of all values of a token, which is that of all keys unless `v_head_dim` is stated."""
        return self.kv_heads * self.v_head_dim or self.kv_width

    @property
    def output_width(self) -> int:
        """Return the width of what attention computes of a token, which is that of all queries unless `v_head_dim` is stated."""
        return self.heads * self.v_head_dim or self.query_width

    @property
    def latent_width(self) -> int:
        """Return the width of all latents of a token, with the rotated key; 0 without latents."""
        return self.q_lora_rank + self.kv_lora_rank + self.qk_rope_head_dim if self.kv_lora_rank else 0

    @property
    def attended(self) -> float:
        """Return the tokens that a token attends to, averaged over a sequence and over the layers."""
        full = self.full_attention_layers / self.layers
        return full * self._attended(self.seq_len) + (1 - full) * self._attended(self.sliding_window or self.seq_len)

    @property
    def norm_parameter_count(self) -> int:
        """Return the number of weights of one norm."""
        return self.hidden * (2 if self.norm == "layer" else 1)

    @property
    def attention_parameter_count(self) -> int:
        """Return the number of weights of one layer's attention: query, key, value and output, and the norms of latents."""
        qkv_bias = self.query_width + self.kv_width + self.value_width if self.biases or self.qkv_bias else 0
        norms = self.q_lora_rank + self.kv_lora_rank if self.kv_lora_rank else 0
        return self._attention_matrices + norms + qkv_bias + (self.hidden if self.biases else 0)

    @property
    def expert_parameter_count(self) -> int:
        """Return the number of weights of one feed-forward network; a dense layer has one network, a mixture of experts E."""
        return self._network(self.expert_ffn or self.ffn)

    @property
    def router_parameter_count(self) -> int:
        """Return the number of weights that choose a layer's experts; 0 without experts."""
        return self.hidden * self.experts if self.experts > 1 else 0

    @property
    def layer_parameter_count(self) -> int:
        """Return the number of weights of one layer: attention, feed-forward network or all experts with their router, two norms.

        The `dense_layers` of a mixture of experts have `dense_layer_parameter_count` instead.
        """
        feed_forward = self.experts * self.expert_parameter_count + self.router_parameter_count + self._shared_parameter_count
        return self.attention_parameter_count + feed_forward + 2 * self.norm_parameter_count

    @property
    def dense_layer_parameter_count(self) -> int:
        """Return the number of weights of one layer with one feed-forward network of width f."""
        return self.attention_parameter_count + self._network(self.ffn) + 2 * self.norm_parameter_count

    @property
    def layers_parameter_count(self) -> int:
        """Return the number of weights of all layers."""
        sparse = self.layers - self.dense_layers
        return sparse * self.layer_parameter_count + self.dense_layers * self.dense_layer_parameter_count

    @property
    def matmul_parameters_per_token(self) -> float:
        """Return the number of weights that multiply a token in a layer, averaged over the layers."""
        active = self.experts_per_token * self.expert_parameter_count + self.router_parameter_count + self._shared_parameter_count
        dense = self.dense_layers / self.layers
        return self.attention_parameter_count + (1 - dense) * active + dense * self._network(self.ffn)

    @property
    def active_ffn(self) -> float:
        """Return the width of all feed-forward networks that a token passes through in a layer, averaged over the layers."""
        dense = self.dense_layers / self.layers
        return (1 - dense) * (self.experts_per_token * (self.expert_ffn or self.ffn) + self.shared_expert_ffn) + dense * self.ffn

    @property
    def embedding_parameter_count(self) -> int:
        """Return the number of weights before the first layer.

        They are token (or patch and class token), position and token-type embeddings.
        """
        patches = (3 * self.patch**2 + 1) * self.hidden + self.hidden
        tokens = patches if self.patch else self.vocab * self.hidden
        return tokens + (self.learned_positions + self.token_types) * self.hidden

    @property
    def head_parameter_count(self) -> int:
        """Return the number of weights of the output projection that it does not share with the embedding."""
        return 0 if self.tied else self.vocab * (self.hidden + (1 if self.biases else 0))

    @property
    def parameter_count(self) -> int:
        """Return the number of all weights: embedding, L layers, one norm before or after them, and output projection.

        Extra heads of a task, such as BERT's pooler, are not included.
        """
        return self.embedding_parameter_count + self.layers_parameter_count + self.norm_parameter_count + self.head_parameter_count

    @property
    def layer_flops_per_sequence(self) -> int:
        """Return the operations of one layer's forward pass over s tokens, 2 per multiply-add.

        They are linear in s, except for the attention, which is quadratic.
        """
        shared = self._matrices(self.shared_expert_ffn)
        linear = self._attention_matrices + self.experts_per_token * self._expert_matrices + self.router_parameter_count + shared
        return 2 * self.seq_len * linear + self._attention_flops

    @property
    def head_flops_per_sequence(self) -> int:
        """Return the forward operations of the output projection of s tokens (only of the class token in a ViT)."""
        return 2 * (1 if self.patch else self.seq_len) * self.vocab * self.hidden

    @property
    def forward_flops_per_sequence(self) -> int:
        """Return the operations of a forward pass over one sequence; for a ViT they include the projection of patches."""
        patches = 2 * (self.seq_len - 1) * 3 * self.patch**2 * self.hidden if self.patch else 0
        dense = self.dense_layers * self._dense_layer_flops
        return patches + dense + (self.layers - self.dense_layers) * self.layer_flops_per_sequence + self.head_flops_per_sequence

    @property
    def part_flops(self) -> tuple[int, ...]:
        """Return the operations of a forward pass over one sequence by part, shape (L + 2,).

        The parts are those before the layers, each layer, and those after the layers.
        """
        sparse = self.layers - self.dense_layers
        layers = [self._dense_layer_flops] * self.dense_layers + [self.layer_flops_per_sequence] * sparse
        before = self.forward_flops_per_sequence - sum(layers) - self.head_flops_per_sequence
        return before, *layers, self.head_flops_per_sequence

    @property
    def _attention_matrices(self) -> int:
        if not self.kv_lora_rank:
            return self.hidden * (self.query_width + self.kv_width + self.value_width + self.output_width)
        queries = self.q_lora_rank * (self.hidden + self.query_width) or self.hidden * self.query_width
        down = self.hidden * (self.kv_lora_rank + self.qk_rope_head_dim)
        up = self.kv_lora_rank * (self.kv_width - self.kv_heads * self.qk_rope_head_dim + self.value_width)
        return queries + down + up + self.output_width * self.hidden

    @property
    def _attention_flops(self) -> int:
        return 2 * (self.query_width + self.output_width) * round(self.seq_len * self.attended)

    def _attended(self, window: int) -> float:
        """Return the tokens that a token attends to in a layer with a window, averaged over a sequence."""
        window = min(window, self.seq_len)
        return window - window * (window - 1) / (2 * self.seq_len) if self.causal else window

    @property
    def _dense_layer_flops(self) -> int:
        return 2 * self.seq_len * (self._attention_matrices + self._matrices(self.ffn)) + self._attention_flops

    @property
    def _expert_matrices(self) -> int:
        return self._matrices(self.expert_ffn or self.ffn)

    @property
    def _shared_parameter_count(self) -> int:
        return self._network(self.shared_expert_ffn) if self.shared_expert_ffn else 0

    def _network(self, width: int) -> int:
        """Return the number of weights of a feed-forward network."""
        biases = (2 if self.gated else 1) * width + self.hidden
        return self._matrices(width) + (biases if self.biases else 0)

    def _matrices(self, width: int) -> int:
        return (3 if self.gated else 2) * self.hidden * width
