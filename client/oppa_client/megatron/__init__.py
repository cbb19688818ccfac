"""Train with Megatron-LM or Megatron-Bridge under oppa: the batch follows the run's plan, and a restart resumes in another layout.

    from oppa_client.megatron import supervise

    supervise()                              # in pretrain_gpt.py, before its options are parsed
    pretrain(...)

A program of Megatron-Bridge gives its configuration:

    supervise(config)
    pretrain(config, forward_step)

Outside oppa the call does nothing. The loop stays Megatron's own. It takes its number of micro-batches from the plan, and it saves and
exits when oppa asks it to leave. See docs/how-to/megatron-lm.md.
"""

from oppa_client.megatron.programs import supervise

__all__ = ["supervise"]
