"""Rules that combine updates of which some may be lies. Names here are the values of `algorithm.robust.name`."""

RULES = {
    "clip": "fedtorch.algorithms.robust.clip:Clip",
    "centred_clipping": "fedtorch.algorithms.robust.centred_clipping:CentredClipping",
    "median": "fedtorch.algorithms.robust.median:Median",
    "trimmed_mean": "fedtorch.algorithms.robust.trimmed_mean:TrimmedMean",
    "geometric_median": "fedtorch.algorithms.robust.geometric_median:GeometricMedian",
    "krum": "fedtorch.algorithms.robust.krum:Krum",
    "multi_krum": "fedtorch.algorithms.robust.krum:MultiKrum",
}
