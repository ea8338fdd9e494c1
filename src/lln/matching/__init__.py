"""Where alpha and beta come from: matched to each sample, to running statistics, fixed or learned."""

from lln.matching.match import METHODS, TARGETS, MatchingReport, match_moments, sample_factor, shape_for_attention
from lln.matching.matcher import MomentMatcher
from lln.ops.moments.formula import DEFAULT_TARGET, PAPER_A, PAPER_B, degrees_of_freedom, match_statistics
from lln.ops.moments.statistics import Statistics, statistics_of
from lln.ops.moments.table import calibrated_range

__all__ = [
    "DEFAULT_TARGET",
    "METHODS",
    "PAPER_A",
    "PAPER_B",
    "TARGETS",
    "MatchingReport",
    "MomentMatcher",
    "Statistics",
    "calibrated_range",
    "degrees_of_freedom",
    "match_moments",
    "match_statistics",
    "sample_factor",
    "shape_for_attention",
    "statistics_of",
]
