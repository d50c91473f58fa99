"""The claims of the LGQ paper's abstract, contributions, results and ablations, in its order."""

from lgq.report.claims.ablations import ABLATIONS
from lgq.report.claims.codebooks import CODEBOOKS
from lgq.report.claims.cost import COST
from lgq.report.claims.generation import GENERATION
from lgq.report.claims.logits import LOGITS
from lgq.report.claims.reconstruction import RECONSTRUCTION
from lgq.report.claims.sizes import SIZES

CLAIMS = (*RECONSTRUCTION, *SIZES, *CODEBOOKS, *GENERATION, *COST, *LOGITS, *ABLATIONS)
