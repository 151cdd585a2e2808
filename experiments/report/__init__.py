"""What a comparison found: the tables on the terminal, the figure, and a page of all of it."""

from experiments.report.comparison import Comparison
from experiments.report.page import write
from experiments.report.picture import PANELS, draw, figure
from experiments.report.summary import DECODINGS, MEASURES, summarize
from experiments.report.tables import table

__all__ = ["DECODINGS", "MEASURES", "PANELS", "Comparison", "draw", "figure", "summarize", "table", "write"]
