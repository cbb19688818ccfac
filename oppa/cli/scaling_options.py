"""Describe the settings of a scaling controller, which are the same on a trace and on a real cluster."""

SCALING = (
    "`scaling.threshold=0.6`, the probability of paying off above which a job grows; `scaling.window=8 h`, over which the arrival rate is"
    " estimated; `scaling.counted`, the smallest job that counts as an arrival; `scaling.max_scale=4` times the request at most;"
    " `scaling.growth_order=smallest`, or `largest`, or `oldest`"
)
