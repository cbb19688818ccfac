"""Build oppa's model as transformers' Llama, which ColossalAI can split; the weights are the same under other names.

The model has RMS norms, rotary positions (halves rotated), grouped-query attention, SwiGLU, and an output
projection of its own.
"""

import re

import torch
from colossalai.shardformer.policies.llama import LlamaForCausalLMPolicy
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from oppa.training.model.weights import initial

_NAMES = {
    "model.embed_tokens": "embedding",
    "model.layers": "blocks",
    "model.norm": "norm",
    "lm_head": "head",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "feed_forward_norm",
    "self_attn.q_proj": "attention.query",
    "self_attn.k_proj": "attention.key",
    "self_attn.v_proj": "attention.value",
    "self_attn.o_proj": "attention.output",
    "mlp.gate_proj": "feed_forward.gate",
    "mlp.up_proj": "feed_forward.up",
    "mlp.down_proj": "feed_forward.down",
}
_PARTS = re.compile("|".join(map(re.escape, _NAMES)))


def build_llama(spec, shard_config, device):
    """Return the model; the layers of this rank's pipeline stages have their weights, and the others stay on the meta device."""
    config = _config(spec.model)
    with torch.device("meta"):
        network = LlamaForCausalLM(config)
    for layer in _held_layers(network, shard_config):
        layer.to_empty(device=device)
    network.model.rotary_emb = LlamaRotaryEmbedding(config, device)
    for name, parameter in network.named_parameters():
        if not parameter.is_meta:
            whole = initial(oppas_name(name), parameter.shape, seed=spec.training.seed, layers=spec.model.layers, device=device)
            parameter.detach().copy_(whole)
    if spec.configuration.recompute == "full":
        network.gradient_checkpointing_enable()
    return network


def oppas_name(name):
    """Return the name in oppa's own model of the parameter that transformers calls `name`."""
    return _PARTS.sub(lambda part: _NAMES[part[0]], name)


def _config(model):
    return LlamaConfig(
        num_hidden_layers=model.layers,
        hidden_size=model.hidden,
        num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads,
        intermediate_size=model.ffn,
        vocab_size=model.vocab,
        max_position_embeddings=model.seq_len,
        rms_norm_eps=model.norm_eps,
        rope_theta=model.rope_theta,
        tie_word_embeddings=False,
        use_cache=False,
    )


def _held_layers(network, shard_config):
    if shard_config.pipeline_stage_manager is None:
        return [network]
    policy = LlamaForCausalLMPolicy()
    policy.set_model(network)
    policy.set_shard_config(shard_config)
    return policy.get_held_layers()
