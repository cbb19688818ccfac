"""Compute the prior means of OPPA as the paper writes them (Appendix D, equations 10 to 21), for the designer `oppa-paper`.

Several of the paper's constants enter only as products: 2 beta + gamma + 3 delta with lambda_Z, M_model and kappa_dp, and so on. Only the
products can be learned, so they are the coefficients here:

    t_comp           seconds of forward and backward on one device, eq. 10
    dp_hop, dp_volume    kappa_dp alpha;  kappa_dp lambda_Z M_model (2 beta + gamma + 3 delta), eqs. 11 to 15
    tp_hop, tp_volume    the same with kappa_tp O_tp/mb and M_act,tp, eq. 16
    pp_transfer      kappa_pp (alpha + M_act,pp beta), eqs. 17 and 18
    each of them `_intra` and `_inter`

`num_microbatches` in the paper's formulas is 1 without a pipeline (App. C.1), whatever the gradient accumulation.
"""

import torch
from torch import Tensor

from oppa.cost.coefficients import Coefficients
from oppa.cost.workload import Workload

INTRA = ("dp_hop_intra", "dp_volume_intra", "tp_hop_intra", "tp_volume_intra", "pp_transfer_intra")
INTER = ("dp_hop_inter", "dp_volume_inter", "tp_hop_inter", "tp_volume_inter", "pp_transfer_inter")
MEMORY = ("m1", "m2", "m3")


def coefficient_names(work: Workload) -> tuple[str, ...]:
    """Return the throughput's coefficients that this workload can identify; those between hosts need a placement on several."""
    return ("t_comp", *INTRA, *(INTER if bool(work.hosts.max() > 1) else ()))


def throughput(work: Workload, c: Coefficients) -> Tensor:
    """Return steps per second, shape (n,) (eq. 20)."""
    return 1 / (computation(work, c) + communication(work, c))


def computation(work: Workload, c: Coefficients) -> Tensor:
    """Return the seconds of computation with the pipeline's bubble, shape (n,).

    This is eq. 10, where t_comp is per micro-batch while the batch is fixed.
    """
    layout = work.layout
    return c["t_comp"] / work.devices * (_microbatches(work) + (layout.pp - 1) / layout.model_chunks)


def communication(work: Workload, c: Coefficients) -> Tensor:
    """Return the seconds of communication that does not overlap, shape (n,) (eq. 19)."""
    return _dp(work, c) + _tp(work, c) + _pp(work, c)


def memory(work: Workload, c: Coefficients, limit: Tensor | float) -> Tensor:
    """Return the bytes on a device, clipped at the limit M_0, shape (n,) (eq. 21)."""
    layout = work.layout
    weights = c["m1"] / (layout.pp * layout.tp)
    gradients = c["m2"] / (work.devices * _microbatches(work))
    return (weights + gradients + c["m3"]).clamp_max(limit)


def all_reduce(members: Tensor, size: Tensor, hop: Tensor, volume: Tensor) -> Tensor:
    """Return the seconds of a ring all-reduce of `size` among `members`, shape (n,).

    This is eq. 11: 2 (D - 1) alpha + (D - 1) / D N (2 beta + gamma + 3 delta).
    """
    return 2 * (members - 1) * hop + (members - 1) / members * size * volume


def _dp(work: Workload, c: Coefficients) -> Tensor:
    """Return the seconds of data-parallel communication, shape (n,) (equations 12 to 15).

    The all-reduce is hierarchical, flat between hosts, or flat within one. If it is hierarchical, each host aggregates first.
    """
    layout, per_host = work.layout, work.machine.devices_per_host
    size = 1 / (layout.tp * layout.pp)
    within = all_reduce(layout.dp, size, c["dp_hop_intra"], c["dp_volume_intra"])
    if "dp_hop_inter" not in c:
        return within
    flat = all_reduce(layout.dp, size, c["dp_hop_inter"], c["dp_volume_inter"])
    node = all_reduce(per_host, size, c["dp_hop_intra"], c["dp_volume_intra"])
    between = all_reduce((layout.dp / per_host).ceil(), size / per_host, c["dp_hop_inter"], c["dp_volume_inter"])
    several = torch.where(layout.dp > per_host, node + between, flat)
    return torch.where(work.hosts > 1, several, within)


def _tp(work: Workload, c: Coefficients) -> Tensor:
    """Return the seconds of tensor-parallel communication, shape (n,).

    This is equation 16; it uses the inter-host coefficients if the group is larger than a host.
    """
    tp, one = work.layout.tp, torch.ones_like(work.layout.tp)
    within = all_reduce(tp, one, c["tp_hop_intra"], c["tp_volume_intra"])
    if "tp_hop_inter" in c:
        across = all_reduce(tp, one, c["tp_hop_inter"], c["tp_volume_inter"])
        within = torch.where(tp > work.machine.devices_per_host, across, within)
    return _microbatches(work) * within


def _pp(work: Workload, c: Coefficients) -> Tensor:
    """Return the seconds of pipeline transfers, shape (n,).

    Equations 17 and 18 add up every transfer of every micro-batch. They leave out model chunks.
    """
    transfer = c["pp_transfer_intra"]
    if "pp_transfer_inter" in c:
        transfer = torch.where(work.hosts > 1, c["pp_transfer_inter"], transfer)
    return (work.layout.pp - 1) * 2 * _microbatches(work) * transfer


def _microbatches(work: Workload) -> Tensor:
    return torch.where(work.layout.pp > 1, work.layout.num_microbatches, 1.0)
