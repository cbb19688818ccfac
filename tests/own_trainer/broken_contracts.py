"""Name what oppa reports of a trainer that breaks its contract, by the fault of `misbehaving.py`."""

REFUSED = {
    "ignores": r"ignores its plan: plan 2 has batches of 32 from step (\d+) on, but step \1 took 16 samples; take `samples`",
    "lies": "contradicts its plan: plan 1 has batches of 16 from step 0 on, but step 2 took 17 samples; take `samples`",
    "goes on": r"saved nothing within 2 s after it was asked to leave \(layout\); it has taken \d+ steps; save and call `run.leave`",
    "old client": r"oppa-client \S+ speaks the protocol of runs in version 0, but oppa \S+ speaks versions 1 to 1; install",
    "new client": r"oppa-client \S+ speaks the protocol of runs in version 9, but oppa \S+ speaks versions 1 to 1; install",
}
"""Errors of a trainer that breaks its contract in a way that it would repeat."""
LEAVES, RESUMES = "did not save and leave for the new layout", "did not resume in the new layout"
UNDONE = {
    "dies asked": LEAVES,
    "dies saving": LEAVES,
    "dies saved": LEAVES,
    "leaves nothing": rf"{LEAVES}: the trainer ended after \d+ steps without calling `run.leave`",
    "dies starting": f"{RESUMES}: .*this layout does not start",
    "refuses": f"{RESUMES}: .*this layout is not built",
    "dies loading": RESUMES,
    "dies loaded": RESUMES,
    "dies at first step": RESUMES,
}
"""Reasons of a failed change of layout, after which the run goes on in the layout before."""
